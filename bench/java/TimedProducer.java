// SPDX-License-Identifier: Apache-2.0

import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicReference;
import java.nio.charset.StandardCharsets;
import java.util.List;

import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Sends the lines of a file as values: first as often as needed to warm up, then once more by the clock.
 *
 * Arguments: file of producer settings, topic, file of values, number of records to warm up with. Prints the seconds
 * from the first timed record until all are acknowledged, and the CPU seconds of this process in that time.
 */
public final class TimedProducer {
    private TimedProducer() {
    }

    public static void main(String[] args) throws Exception {
        Properties settings = new Properties();
        try (java.io.InputStream in = Files.newInputStream(Paths.get(args[0]))) {
            settings.load(in);
        }
        List<String> lines = Files.readAllLines(Paths.get(args[2]), StandardCharsets.US_ASCII);
        byte[][] values = new byte[lines.size()][];
        for (int at = 0; at < values.length; at++) {
            values[at] = lines.get(at).getBytes(StandardCharsets.US_ASCII);
        }
        lines = null;
        long warmUp = Long.parseLong(args[3]);
        ByteArraySerializer serializer = new ByteArraySerializer();
        try (Producer<byte[], byte[]> producer = new KafkaProducer<>(settings, serializer, serializer)) {
            for (long sent = 0; sent < warmUp; sent += values.length) {
                send(producer, args[1], values, (int) Math.min(values.length, warmUp - sent));
            }
            long cpu = cpuNanos();
            long began = System.nanoTime();
            send(producer, args[1], values, values.length);
            System.out.println((System.nanoTime() - began) / 1e9 + " " + (cpuNanos() - cpu) / 1e9);
        }
    }

    private static void send(Producer<byte[], byte[]> producer, String topic, byte[][] values, int count)
            throws Exception {
        AtomicReference<Exception> failure = new AtomicReference<>();
        for (int at = 0; at < count; at++) {
            producer.send(new ProducerRecord<>(topic, values[at]), (written, error) -> {
                if (error != null) {
                    failure.set(error);
                }
            });
        }
        producer.flush();
        if (failure.get() != null) {
            throw failure.get();
        }
    }

    private static long cpuNanos() {
        return ((com.sun.management.OperatingSystemMXBean)
                java.lang.management.ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime();
    }
}
