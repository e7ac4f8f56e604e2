// SPDX-License-Identifier: Apache-2.0
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Writes in transactions what it is told on stdin and answers each line when it is done. Arguments: bootstrap servers,
 * topic. In: {@code begin}, {@code send VALUE}, {@code commit}, {@code abort}. Out: the offset for a {@code send}, else
 * {@code -}.
 */
public class TransactionalProducer {
    public static void main(String[] args) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args[0]);
        settings.put("transactional.id", args[1]);
        settings.put("key.serializer", StringSerializer.class.getName());
        settings.put("value.serializer", StringSerializer.class.getName());
        KafkaProducer<String, String> producer = new KafkaProducer<>(settings);
        producer.initTransactions();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ", 2);
            System.out.println(carryOut(producer, args[1], words[0], words.length > 1 ? words[1] : ""));
            System.out.flush();
        }
        producer.close();
    }

    private static String carryOut(KafkaProducer<String, String> producer, String topic, String what, String value)
            throws Exception {
        switch (what) {
            case "begin":
                producer.beginTransaction();
                return "-";
            case "commit":
                producer.commitTransaction();
                return "-";
            case "abort":
                producer.abortTransaction();
                return "-";
            case "send":
                return Long.toString(producer.send(new ProducerRecord<>(topic, 0, null, value)).get().offset());
            default:
                throw new IllegalArgumentException(what);
        }
    }
}
