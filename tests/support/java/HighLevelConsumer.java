// SPDX-License-Identifier: Apache-2.0
import java.io.FileDescriptor;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.PrintStream;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CopyOnWriteArrayList;

import kafka.consumer.Blacklist;
import kafka.consumer.Consumer;
import kafka.consumer.ConsumerConfig;
import kafka.consumer.ConsumerIterator;
import kafka.consumer.KafkaStream;
import kafka.consumer.Whitelist;
import kafka.javaapi.consumer.ConsumerConnector;
import kafka.message.MessageAndMetadata;

/**
 * Kafka's ZooKeeper-based high-level consumer as an oracle: prints each message it delivers as
 * {@code stream TAB topic TAB partition TAB offset TAB key TAB value}, key and value in base64 or {@code -} for null.
 *
 * Arguments: a properties file, then {@code topic:A,B:STREAMS}, {@code whitelist:REGEX:STREAMS} or
 * {@code blacklist:REGEX:STREAMS}. SIGTERM commits, releases and leaves; SIGKILL is a crash.
 */
public class HighLevelConsumer {
    public static void main(String[] args) throws Exception {
        Properties properties = new Properties();
        try (FileInputStream in = new FileInputStream(args[0])) {
            properties.load(in);
        }
        ConsumerConnector connector = Consumer.createJavaConsumerConnector(new ConsumerConfig(properties));
        int first = args[1].indexOf(':');
        int last = args[1].lastIndexOf(':');
        String kind = args[1].substring(0, first);
        String what = args[1].substring(first + 1, last);
        int streams = Integer.parseInt(args[1].substring(last + 1));
        PrintStream out = new PrintStream(new FileOutputStream(FileDescriptor.out), false, "US-ASCII");
        List<Thread> threads = new CopyOnWriteArrayList<>();
        // opening takes part in the group already: from then on the process must leave it in order
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            connector.shutdown();
            // what was taken from the streams counts as consumed, so it must be printed before the process ends
            threads.forEach(HighLevelConsumer::join);
        }));
        int number = 0;
        for (KafkaStream<byte[], byte[]> stream : open(connector, kind, what, streams)) {
            threads.add(start(stream, number++, out));
        }
        System.err.println("consuming");
        for (Thread thread : threads) {
            thread.join();
        }
    }

    private static void join(Thread thread) {
        try {
            thread.join(5000);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }

    private static List<KafkaStream<byte[], byte[]>> open(ConsumerConnector connector, String kind, String what, int streams) {
        if (kind.equals("whitelist")) {
            return connector.createMessageStreamsByFilter(new Whitelist(what), streams);
        }
        if (kind.equals("blacklist")) {
            return connector.createMessageStreamsByFilter(new Blacklist(what), streams);
        }
        Map<String, Integer> topics = new HashMap<>();
        for (String topic : what.split(",")) {
            topics.put(topic, streams);
        }
        List<KafkaStream<byte[], byte[]>> all = new ArrayList<>();
        connector.createMessageStreams(topics).values().forEach(all::addAll);
        return all;
    }

    private static Thread start(KafkaStream<byte[], byte[]> stream, int number, PrintStream out) {
        Thread thread = new Thread(() -> {
            ConsumerIterator<byte[], byte[]> iterator = stream.iterator();
            while (iterator.hasNext()) {
                MessageAndMetadata<byte[], byte[]> m = iterator.next();
                String line = number + "\t" + m.topic() + "\t" + m.partition() + "\t" + m.offset() + "\t"
                    + encode(m.key()) + "\t" + encode(m.message());
                synchronized (out) {
                    out.println(line);
                    out.flush();
                }
            }
        });
        thread.start();
        return thread;
    }

    private static String encode(byte[] bytes) {
        return bytes == null ? "-" : Base64.getEncoder().encodeToString(bytes);
    }
}
