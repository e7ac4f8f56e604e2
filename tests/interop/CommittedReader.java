// SPDX-License-Identifier: Apache-2.0
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Reads a topic from its beginning to the last stable offset as it is at the start, with read_committed. Arguments:
 * bootstrap servers, topic. One line for each record: partition, offset, timestamp, key, value and headers, separated by
 * spaces; the last three in base64, "-" for null.
 */
public class CommittedReader {
    public static void main(String[] args) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args[0]);
        settings.put("isolation.level", "read_committed");
        settings.put("enable.auto.commit", "false");
        settings.put("auto.offset.reset", "earliest");
        settings.put("group.id", "committed-reader");
        settings.put("key.deserializer", ByteArrayDeserializer.class.getName());
        settings.put("value.deserializer", ByteArrayDeserializer.class.getName());
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings)) {
            List<TopicPartition> partitions = new ArrayList<>();
            for (PartitionInfo one : consumer.partitionsFor(args[1])) {
                partitions.add(new TopicPartition(one.topic(), one.partition()));
            }
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            Map<TopicPartition, Long> ends = consumer.endOffsets(partitions);
            while (partitions.stream().anyMatch(one -> consumer.position(one) < ends.get(one))) {
                for (ConsumerRecord<byte[], byte[]> record : poll(consumer)) {
                    StringBuilder headers = new StringBuilder();
                    for (Header header : record.headers()) {
                        headers.append(header.key()).append('=').append(encode(header.value())).append(';');
                    }
                    System.out.println(record.partition() + " " + record.offset() + " " + record.timestamp() + " "
                        + encode(record.key()) + " " + encode(record.value()) + " " + encode(headers.toString().getBytes()));
                }
            }
        }
    }

    /** poll(long) is gone since 4.0, poll(Duration) was not there before 2.0. */
    @SuppressWarnings("unchecked")
    private static ConsumerRecords<byte[], byte[]> poll(KafkaConsumer<byte[], byte[]> consumer) throws Exception {
        try {
            return (ConsumerRecords<byte[], byte[]>) KafkaConsumer.class.getMethod("poll", Duration.class)
                .invoke(consumer, Duration.ofMillis(200));
        } catch (NoSuchMethodException before) {
            return (ConsumerRecords<byte[], byte[]>) KafkaConsumer.class.getMethod("poll", long.class)
                .invoke(consumer, 200L);
        }
    }

    private static String encode(byte[] data) {
        return data == null ? "-" : Base64.getEncoder().encodeToString(data);
    }
}
