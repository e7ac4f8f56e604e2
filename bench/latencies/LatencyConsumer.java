// SPDX-License-Identifier: Apache-2.0
import java.io.FileOutputStream;
import java.io.OutputStream;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;

/** The new consumer from the end of the topic; notes arrival times. Arguments: bootstrap topic partitions path. */
public class LatencyConsumer {
    public static void main(String[] args) throws Exception {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", args[0]);
        properties.put("enable.auto.commit", "false");
        properties.put("key.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer");
        properties.put("value.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer");
        List<TopicPartition> partitions = new ArrayList<>();
        for (int number = 0; number < Integer.parseInt(args[2]); number++) {
            partitions.add(new TopicPartition(args[1], number));
        }
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(properties);
                OutputStream out = new FileOutputStream(args[3], true)) {
            consumer.assign(partitions);
            consumer.seekToEnd(partitions);
            StringBuilder lines = new StringBuilder();
            int count = 0;
            while (true) {
                ConsumerRecords<byte[], byte[]> records = consumer.poll(1000);
                Instant now = Instant.now();
                long micros = now.getEpochSecond() * 1_000_000L + now.getNano() / 1000;
                for (ConsumerRecord<byte[], byte[]> record : records) {
                    lines.append(new String(record.value(), 0, 16, "US-ASCII")).append(' ').append(micros).append('\n');
                    count++;
                }
                if (count >= 500) {
                    out.write(lines.toString().getBytes("US-ASCII"));
                    out.flush();
                    lines.setLength(0);
                    count = 0;
                }
            }
        }
    }
}
