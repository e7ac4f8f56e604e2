// SPDX-License-Identifier: Apache-2.0
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;

import kafka.javaapi.producer.Producer;
import kafka.producer.KeyedMessage;
import kafka.producer.ProducerConfig;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;

/**
 * Kafka's own producers, new and old, with their own choice of partitions: sends each line of stdin as key and value.
 *
 * Arguments: bootstrap, then a topic for the new producer, one for the old one with bytes as keys (ByteArrayPartitioner), and
 * one for the old one with strings (its default partitioner).
 */
public class KeyedProducers {
    public static void main(String[] args) throws Exception {
        List<String> keys = new ArrayList<>();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            keys.add(line);
        }
        sendNew(args[0], args[1], keys);
        Properties bytes = oldProperties(args[0]);
        bytes.put("partitioner.class", "kafka.producer.ByteArrayPartitioner");
        List<KeyedMessage<byte[], byte[]>> messages = new ArrayList<>();
        for (String key : keys) {
            messages.add(new KeyedMessage<>(args[2], utf8(key), utf8(key)));
        }
        Producer<byte[], byte[]> byBytes = new Producer<>(new ProducerConfig(bytes));
        byBytes.send(messages);
        byBytes.close();
        Properties strings = oldProperties(args[0]);
        strings.put("key.serializer.class", "kafka.serializer.StringEncoder");
        List<KeyedMessage<String, byte[]>> texts = new ArrayList<>();
        for (String key : keys) {
            texts.add(new KeyedMessage<>(args[3], key, utf8(key)));
        }
        Producer<String, byte[]> byString = new Producer<>(new ProducerConfig(strings));
        byString.send(texts);
        byString.close();
    }

    private static void sendNew(String bootstrap, String topic, List<String> keys) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        properties.put("key.serializer", "org.apache.kafka.common.serialization.ByteArraySerializer");
        properties.put("value.serializer", "org.apache.kafka.common.serialization.ByteArraySerializer");
        KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(properties);
        for (String key : keys) {
            producer.send(new ProducerRecord<>(topic, utf8(key), utf8(key)));
        }
        producer.close();
    }

    private static Properties oldProperties(String bootstrap) {
        Properties properties = new Properties();
        properties.put("metadata.broker.list", bootstrap);
        properties.put("request.required.acks", "-1");
        return properties;
    }

    private static byte[] utf8(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }
}
