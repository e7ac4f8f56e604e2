// SPDX-License-Identifier: Apache-2.0
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Constructor;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.stream.Collectors;

/**
 * Assigns partitions with Kafka's own assignors.
 *
 * Each line of stdin is "range|roundrobin", counts and members, with tabs between them: "t=3;u=1" and "a=t,u;b=t". Each
 * line of stdout has the members with their partitions: "a=t/0,t/1,u/0;b=t/2", sorted by member as Java sorts strings.
 */
public class AssignorOracle {
    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, true, "UTF-8");
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split("\t", -1);
            out.println(answer(words[0], pairs(words[1]), pairs(words[2])));
        }
    }

    private static String answer(String name, Map<String, String> counts, Map<String, String> members) throws Exception {
        Map<String, Integer> partitions = new HashMap<>();
        for (Map.Entry<String, String> one : counts.entrySet()) {
            partitions.put(one.getKey(), Integer.parseInt(one.getValue()));
        }
        Constructor<?> subscription = subscription().getConstructor(List.class);
        Map<String, Object> subscriptions = new HashMap<>();
        for (Map.Entry<String, String> one : members.entrySet()) {
            List<String> topics = one.getValue().isEmpty() ? new ArrayList<>() : Arrays.asList(one.getValue().split(","));
            subscriptions.put(one.getKey(), subscription.newInstance(topics));
        }
        String simple = name.equals("range") ? "RangeAssignor" : "RoundRobinAssignor";
        Object assignor = Class.forName("org.apache.kafka.clients.consumer." + simple).getConstructor().newInstance();
        Method assign = assignor.getClass().getMethod("assign", Map.class, Map.class);
        Map<?, ?> assigned = (Map<?, ?>) assign.invoke(assignor, partitions, subscriptions);
        TreeMap<String, String> shown = new TreeMap<>();
        for (Map.Entry<?, ?> one : assigned.entrySet()) {
            // a partition shows itself as topic-number, and our topics have no hyphen
            shown.put(
                (String) one.getKey(),
                ((List<?>) one.getValue()).stream().map(it -> it.toString().replace('-', '/')).sorted()
                    .collect(Collectors.joining(","))
            );
        }
        return shown.entrySet().stream().map(one -> one.getKey() + "=" + one.getValue()).collect(Collectors.joining(";"));
    }

    private static Class<?> subscription() throws ClassNotFoundException {
        try {
            return Class.forName("org.apache.kafka.clients.consumer.ConsumerPartitionAssignor$Subscription");
        } catch (ClassNotFoundException before24) {
            return Class.forName("org.apache.kafka.clients.consumer.internals.PartitionAssignor$Subscription");
        }
    }

    private static Map<String, String> pairs(String text) {
        Map<String, String> found = new HashMap<>();
        for (String pair : text.split(";")) {
            if (!pair.isEmpty()) {
                found.put(pair.substring(0, pair.indexOf('=')), pair.substring(pair.indexOf('=') + 1));
            }
        }
        return found;
    }
}
