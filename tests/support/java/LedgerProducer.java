// SPDX-License-Identifier: Apache-2.0
import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.util.Base64;
import java.util.Properties;

import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;

/**
 * Kafka's own producer as a ledger: sends what it reads on stdin and prints what the broker acknowledged.
 *
 * In: {@code topic TAB partition TAB key TAB value[ TAB name=value,name=value]}; key, value and header values in base64,
 * {@code -} for null. Out: {@code number TAB topic TAB partition TAB offset}, or {@code number TAB ERROR TAB class}, where
 * number counts the lines read from 0. Ends at the end of its input, when all is acknowledged.
 *
 * Compiled against the release's own client, so headers are reached by reflection (they came with 0.11).
 */
public class LedgerProducer {
    public static void main(String[] args) throws Exception {
        Properties properties = new Properties();
        try (FileInputStream in = new FileInputStream(args[0])) {
            properties.load(in);
        }
        PrintStream out = new PrintStream(new FileOutputStream(FileDescriptor.out), false, "US-ASCII");
        KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(properties);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        long count = 0;
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            long number = count++;
            producer.send(record(line.split("\t", -1)), (metadata, error) -> {
                synchronized (out) {
                    out.println(error == null
                        ? number + "\t" + metadata.topic() + "\t" + metadata.partition() + "\t" + metadata.offset()
                        : number + "\tERROR\t" + error);
                    out.flush();
                }
            });
        }
        producer.close();
    }

    private static ProducerRecord<byte[], byte[]> record(String[] fields) throws Exception {
        ProducerRecord<byte[], byte[]> record =
            new ProducerRecord<>(fields[0], Integer.valueOf(fields[1]), decode(fields[2]), decode(fields[3]));
        if (fields.length > 4 && !fields[4].isEmpty()) {
            Object headers = ProducerRecord.class.getMethod("headers").invoke(record);
            Class<?> type = Class.forName("org.apache.kafka.common.header.Headers");
            for (String header : fields[4].split(",")) {
                int at = header.indexOf('=');
                type.getMethod("add", String.class, byte[].class)
                    .invoke(headers, header.substring(0, at), decode(header.substring(at + 1)));
            }
        }
        return record;
    }

    private static byte[] decode(String text) {
        return text.equals("-") ? null : Base64.getDecoder().decode(text);
    }
}
