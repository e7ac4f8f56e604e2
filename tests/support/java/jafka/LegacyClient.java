// SPDX-License-Identifier: Apache-2.0
import java.io.IOException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.TimeUnit;

import io.jafka.consumer.Consumer;
import io.jafka.consumer.ConsumerConfig;
import io.jafka.consumer.ConsumerConnector;
import io.jafka.consumer.MessageStream;
import io.jafka.message.Message;
import io.jafka.producer.Producer;
import io.jafka.producer.ProducerConfig;
import io.jafka.producer.StringProducerData;
import io.jafka.producer.serializer.Decoder;
import io.jafka.producer.serializer.StringDecoder;
import io.jafka.producer.serializer.StringEncoder;

/**
 * A client of the 0.7 protocol. {@code produce ZK TOPIC COUNT [PER_SECOND]} sends {@code value-0 ...}; {@code consume ZK TOPIC GROUP}
 * is a member of two streams, which prints each value on a line until SIGTERM. {@code count ZK TOPIC GROUP FETCH_BYTES}
 * is a member of one stream, which prints a time in seconds and the number of messages so far, every 50 ms.
 */
public class LegacyClient {
    public static void main(String[] args) throws Exception {
        Properties properties = new Properties();
        properties.setProperty("zk.connect", args[1]);
        properties.setProperty("zk.sessiontimeout.ms", "2000");
        if (args[0].equals("produce")) {
            properties.setProperty("serializer.class", StringEncoder.class.getName());
            Producer<String, String> producer = new Producer<>(new ProducerConfig(properties));
            long began = System.nanoTime();
            for (int number = 0; number < Integer.parseInt(args[3]); number++) {
                if (args.length > 4) {
                    long due = began + (long) (number * 1e9 / Integer.parseInt(args[4]));
                    TimeUnit.NANOSECONDS.sleep(due - System.nanoTime());
                }
                producer.send(new StringProducerData(args[2]).add("value-" + number));
            }
            producer.close();
        } else {
            properties.setProperty("groupid", args[3]);
            properties.setProperty("autooffset.reset", "smallest");
            properties.setProperty("autocommit.interval.ms", "200");
            properties.setProperty("rebalance.backoff.ms", "500");
            if (args[0].equals("count")) {
                properties.setProperty("fetch.size", args[4]);
                count(properties, args[2]);
            } else {
                consume(properties, args[2]);
            }
        }
    }

    private static void consume(Properties properties, String topic) throws Exception {
        ConsumerConnector connector = Consumer.create(new ConsumerConfig(properties));
        List<Thread> threads = new ArrayList<>();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            try {
                connector.close();
            } catch (IOException error) {
                error.printStackTrace();
            }
        }));
        for (MessageStream<String> stream : connector.createMessageStreams(
                Collections.singletonMap(topic, 2), new StringDecoder()).get(topic)) {
            Thread thread = new Thread(() -> {
                for (String value : stream) {
                    synchronized (System.out) {
                        System.out.println(value);
                        System.out.flush();
                    }
                }
            });
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads) {
            thread.join();
        }
    }

    /** Count messages as they are, without a string for each of them. */
    private static void count(Properties properties, String topic) throws Exception {
        Decoder<Message> asTheyAre = message -> message;
        MessageStream<Message> stream = Consumer.create(new ConsumerConfig(properties))
                .createMessageStreams(Collections.singletonMap(topic, 1), asTheyAre).get(topic).get(0);
        long number = 0;
        long told = 0;
        for (Message message : stream) {
            number++;
            // a look at the clock for each message would cost more than the message
            if (number % 1000 == 0 && System.nanoTime() - told >= 50_000_000L) {
                told = System.nanoTime();
                System.out.printf("%.6f %d%n", told / 1e9, number);
                System.out.flush();
            }
        }
    }
}
