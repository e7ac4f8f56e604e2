// SPDX-License-Identifier: Apache-2.0
import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Writes two records in a committed transaction, two in an aborted one, and one in a transaction that is left open.
 * Arguments: bootstrap servers, topic.
 */
public class TransactionProducer {
    public static void main(String[] args) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args[0]);
        settings.put("transactional.id", "recorder");
        settings.put("key.serializer", StringSerializer.class.getName());
        settings.put("value.serializer", StringSerializer.class.getName());
        KafkaProducer<String, String> producer = new KafkaProducer<>(settings);
        producer.initTransactions();

        producer.beginTransaction();
        send(producer, args[1], "committed-0", "committed-1");
        producer.commitTransaction();

        producer.beginTransaction();
        send(producer, args[1], "aborted-0", "aborted-1");
        producer.abortTransaction();

        producer.beginTransaction();
        send(producer, args[1], "open-0");
        Runtime.getRuntime().halt(0);
    }

    private static void send(KafkaProducer<String, String> producer, String topic, String... values) throws Exception {
        for (String value : values) {
            producer.send(new ProducerRecord<>(topic, 0, null, value)).get();
        }
    }
}
