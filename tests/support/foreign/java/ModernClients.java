// SPDX-License-Identifier: Apache-2.0
import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import kafka.admin.AdminClient;
import kafka.coordinator.group.GroupOverview;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import scala.collection.JavaConverters;

/**
 * Kafka's producer, consumer and admin clients of 1.1, told what to do on stdin.
 *
 * {@code ModernClients BOOTSTRAP}: a JSON object a line, whose "ask" is what to do; a line of JSON each as the answer,
 * {@code {"failed": "..."}} if that failed. Keys, values and headers' values are base64 or null.
 */
public class ModernClients {
    private static final long PATIENCE_MS = 30_000;

    private final ObjectMapper json = new ObjectMapper();
    private final String bootstrap;

    private ModernClients(String bootstrap) {
        this.bootstrap = bootstrap;
    }

    public static void main(String[] args) throws Exception {
        PrintStream out = new PrintStream(new FileOutputStream(FileDescriptor.out), true, "UTF-8");
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        new ModernClients(args[0]).serve(in, out);
    }

    private void serve(BufferedReader in, PrintStream out) throws Exception {
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            Object answer;
            try {
                answer = Collections.singletonMap("answer", answer(json.readTree(line)));
            } catch (Exception failure) {
                Throwable cause = failure instanceof ExecutionException ? failure.getCause() : failure;
                answer = Collections.singletonMap("failed", cause.toString());
            }
            out.println(json.writeValueAsString(answer));
        }
    }

    private Object answer(JsonNode asked) throws Exception {
        switch (asked.get("ask").asText()) {
            case "produce":
                return produce(asked);
            case "read":
                return read(asked);
            case "offsets":
                return offsets(asked);
            case "offsets_at":
                return offsetsAt(asked);
            case "first_after_reset":
                return firstAfterReset(asked);
            case "metadata":
                return metadata(asked);
            case "committed":
                return committed(asked);
            case "describe":
                return describe(asked);
            case "groups":
                return groups();
            case "create_topic":
                return createTopic(asked);
            default:
                throw new IllegalArgumentException(asked.toString());
        }
    }

    private Properties properties(String... more) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        properties.put("auto.offset.reset", "earliest");
        properties.put("enable.auto.commit", "false");
        for (int i = 0; i < more.length; i += 2) {
            properties.put(more[i], more[i + 1]);
        }
        return properties;
    }

    private KafkaConsumer<byte[], byte[]> consumer(String... more) {
        return new KafkaConsumer<>(properties(more), new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private Object produce(JsonNode asked) throws Exception {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        properties.put("linger.ms", "20");
        properties.put("max.block.ms", "10000");
        properties.put("request.timeout.ms", "10000");
        asked.get("settings").fields().forEachRemaining(one -> properties.put(one.getKey(), one.getValue().asText()));
        KafkaProducer<byte[], byte[]> producer =
            new KafkaProducer<>(properties, new ByteArraySerializer(), new ByteArraySerializer());
        try {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (JsonNode one : asked.get("records")) {
                Long time = one.get("time").isNull() ? null : one.get("time").asLong();
                ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(
                    asked.get("topic").asText(), 0, time, one.get("key").binaryValue(), one.get("value").binaryValue());
                for (JsonNode header : one.get("headers")) {
                    record.headers().add(header.get(0).asText(), header.get(1).binaryValue());
                }
                sent.add(producer.send(record));
            }
            List<Long> offsets = new ArrayList<>();
            for (Future<RecordMetadata> one : sent) {
                offsets.add(one.get(PATIENCE_MS, TimeUnit.MILLISECONDS).offset());
            }
            return offsets;
        } finally {
            producer.close(0, TimeUnit.MILLISECONDS);
        }
    }

    private Object read(JsonNode asked) {
        Map<String, List<Object>> rows = new LinkedHashMap<>();
        List<TopicPartition> here = new ArrayList<>();
        int left = 0;
        for (Map.Entry<String, JsonNode> one : iterable(asked.get("counts"))) {
            rows.put(one.getKey(), new ArrayList<>());
            here.add(new TopicPartition(one.getKey(), 0));
            left += one.getValue().asInt();
        }
        try (KafkaConsumer<byte[], byte[]> consumer = consumer()) {
            consumer.assign(here);
            long end = System.currentTimeMillis() + PATIENCE_MS;
            while (left > 0) {
                if (System.currentTimeMillis() > end) {
                    throw new IllegalStateException(left + " records did not come");
                }
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(100)) {
                    left--;
                    rows.get(record.topic()).add(row(record));
                }
            }
        }
        return rows;
    }

    private static List<Object> row(ConsumerRecord<byte[], byte[]> record) {
        List<Object> headers = new ArrayList<>();
        for (Header header : record.headers()) {
            List<Object> pair = new ArrayList<>();
            pair.add(header.key());
            pair.add(encode(header.value()));
            headers.add(pair);
        }
        List<Object> row = new ArrayList<>();
        row.add(record.offset());
        row.add(encode(record.key()));
        row.add(encode(record.value()));
        row.add(record.timestamp());
        row.add(headers);
        return row;
    }

    private Object offsets(JsonNode asked) {
        TopicPartition here = partition(asked);
        try (KafkaConsumer<byte[], byte[]> consumer = consumer()) {
            List<Long> answer = new ArrayList<>();
            answer.add(consumer.beginningOffsets(Collections.singleton(here)).get(here));
            answer.add(consumer.endOffsets(Collections.singleton(here)).get(here));
            return answer;
        }
    }

    private Object offsetsAt(JsonNode asked) {
        TopicPartition here = partition(asked);
        List<Object> answer = new ArrayList<>();
        try (KafkaConsumer<byte[], byte[]> consumer = consumer()) {
            for (JsonNode time : asked.get("times")) {
                OffsetAndTimestamp found = consumer.offsetsForTimes(Collections.singletonMap(here, time.asLong())).get(here);
                answer.add(found == null ? null : new long[] {found.offset(), found.timestamp()});
            }
        }
        return answer;
    }

    private Object firstAfterReset(JsonNode asked) {
        TopicPartition here = partition(asked);
        try (KafkaConsumer<byte[], byte[]> consumer = consumer()) {
            consumer.assign(Collections.singleton(here));
            consumer.seek(here, asked.get("offset").asLong());
            long end = System.currentTimeMillis() + PATIENCE_MS;
            while (System.currentTimeMillis() < end) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(100)) {
                    return record.offset();
                }
            }
            throw new IllegalStateException("no record came");
        }
    }

    private Object metadata(JsonNode asked) throws Exception {
        Map<Integer, String> brokers = new LinkedHashMap<>();
        Map<String, Object> answer = new LinkedHashMap<>();
        try (org.apache.kafka.clients.admin.AdminClient admin =
                org.apache.kafka.clients.admin.AdminClient.create(properties())) {
            for (Node node : admin.describeCluster().nodes().get()) {
                brokers.put(node.id(), node.host());
            }
            answer.put("controller", admin.describeCluster().controller().get().id());
        }
        List<Object> partitions = new ArrayList<>();
        try (KafkaConsumer<byte[], byte[]> consumer = consumer()) {
            for (PartitionInfo info : consumer.partitionsFor(asked.get("topic").asText())) {
                List<Object> row = new ArrayList<>();
                row.add(info.partition());
                row.add(info.leader().id());
                row.add(ids(info.replicas()));
                row.add(ids(info.inSyncReplicas()));
                partitions.add(row);
            }
        }
        answer.put("brokers", brokers);
        answer.put("partitions", partitions);
        return answer;
    }

    private Object committed(JsonNode asked) {
        AdminClient admin = AdminClient.create(properties());
        try {
            Map<String, Object> answer = new LinkedHashMap<>();
            JavaConverters.mapAsJavaMapConverter(admin.listGroupOffsets(asked.get("group").asText())).asJava()
                .forEach((partition, offset) -> {
                    if (partition.topic().equals(asked.get("topic").asText())) {
                        answer.put(String.valueOf(partition.partition()), offset);
                    }
                });
            return answer;
        } finally {
            admin.close();
        }
    }

    private Object describe(JsonNode asked) {
        AdminClient admin = AdminClient.create(properties());
        try {
            AdminClient.ConsumerGroupSummary found = admin.describeConsumerGroup(asked.get("group").asText(), PATIENCE_MS);
            List<Object> members = new ArrayList<>();
            for (AdminClient.ConsumerSummary one : JavaConverters.seqAsJavaListConverter(found.consumers().get()).asJava()) {
                List<Object> member = new ArrayList<>();
                List<Integer> partitions = new ArrayList<>();
                for (TopicPartition here : JavaConverters.seqAsJavaListConverter(one.assignment()).asJava()) {
                    partitions.add(here.partition());
                }
                member.add(one.clientId());
                member.add(one.host());
                member.add(partitions);
                members.add(member);
            }
            Map<String, Object> answer = new LinkedHashMap<>();
            answer.put("state", found.state());
            answer.put("protocol", found.assignmentStrategy());
            answer.put("members", members);
            return answer;
        } finally {
            admin.close();
        }
    }

    private Object groups() {
        AdminClient admin = AdminClient.create(properties());
        try {
            List<String> answer = new ArrayList<>();
            for (GroupOverview one : JavaConverters.seqAsJavaListConverter(admin.listAllConsumerGroupsFlattened()).asJava()) {
                answer.add(one.groupId());
            }
            return answer;
        } finally {
            admin.close();
        }
    }

    private Object createTopic(JsonNode asked) throws Exception {
        try (org.apache.kafka.clients.admin.AdminClient admin =
                org.apache.kafka.clients.admin.AdminClient.create(properties("request.timeout.ms", "10000"))) {
            NewTopic topic = new NewTopic(asked.get("topic").asText(), asked.get("partitions").asInt(), (short) 1);
            admin.createTopics(Collections.singleton(topic)).all().get(PATIENCE_MS, TimeUnit.MILLISECONDS);
            return null;
        }
    }

    private static TopicPartition partition(JsonNode asked) {
        return new TopicPartition(asked.get("topic").asText(), 0);
    }

    private static List<Integer> ids(Node[] nodes) {
        List<Integer> ids = new ArrayList<>();
        for (Node node : nodes) {
            ids.add(node.id());
        }
        return ids;
    }

    private static Iterable<Map.Entry<String, JsonNode>> iterable(JsonNode object) {
        return object::fields;
    }

    private static String encode(byte[] bytes) {
        return bytes == null ? null : Base64.getEncoder().encodeToString(bytes);
    }
}
