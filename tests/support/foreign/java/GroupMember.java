// SPDX-License-Identifier: Apache-2.0
import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Method;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Properties;

import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * A member of a group that a broker coordinates, by the KafkaConsumer of any release: {@code GroupMember BOOTSTRAP GROUP
 * TOPIC NAME}.
 *
 * It prints {@code assigned 0,1} when that changes, {@code read N} for each record (whose value is a number), and
 * {@code committed} after the line {@code commit} on stdin; the line {@code leave} makes it leave.
 */
public class GroupMember {
    private static final long POLL_MS = 100;

    private final KafkaConsumer<byte[], byte[]> consumer;
    private final Method poll;
    private final Object patience;

    private GroupMember(KafkaConsumer<byte[], byte[]> consumer) throws NoSuchMethodException {
        this.consumer = consumer;
        // poll(Duration) came with 2.0, and poll(long) went with 4.0
        Method found;
        Object given;
        try {
            found = KafkaConsumer.class.getMethod("poll", Duration.class);
            given = Duration.ofMillis(POLL_MS);
        } catch (NoSuchMethodException old) {
            found = KafkaConsumer.class.getMethod("poll", long.class);
            given = POLL_MS;
        }
        this.poll = found;
        this.patience = given;
    }

    public static void main(String[] args) throws Exception {
        PrintStream out = new PrintStream(new FileOutputStream(FileDescriptor.out), true, "UTF-8");
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        Properties properties = new Properties();
        properties.put("bootstrap.servers", args[0]);
        properties.put("group.id", args[1]);
        properties.put("client.id", args[3]);
        properties.put("auto.offset.reset", "earliest");
        properties.put("enable.auto.commit", "false");
        properties.put("session.timeout.ms", "6000");
        properties.put("heartbeat.interval.ms", "200");
        try (KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(properties, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.subscribe(Collections.singletonList(args[2]));
            new GroupMember(consumer).consume(in, out);
        }
    }

    private void consume(BufferedReader in, PrintStream out) throws Exception {
        String assigned = "";
        while (true) {
            for (ConsumerRecord<byte[], byte[]> record : poll()) {
                out.println("read " + new String(record.value(), "US-ASCII"));
            }
            List<String> now = new ArrayList<>();
            for (TopicPartition here : consumer.assignment()) {
                now.add(String.valueOf(here.partition()));
            }
            if (!assigned.equals(String.join(",", now))) {
                assigned = String.join(",", now);
                out.println("assigned " + assigned);
            }
            if (in.ready()) {
                if (in.readLine().equals("leave")) {
                    return;
                }
                consumer.commitSync();
                out.println("committed");
            }
        }
    }

    @SuppressWarnings("unchecked")
    private ConsumerRecords<byte[], byte[]> poll() throws ReflectiveOperationException {
        return (ConsumerRecords<byte[], byte[]>) poll.invoke(consumer, patience);
    }
}
