// SPDX-License-Identifier: Apache-2.0
package org.apache.kafka.connect.mirror;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;

/**
 * MirrorMaker 2's own classes as an oracle. It is in their package, because the encoder is not public.
 *
 * "decode": reads lines of a record's key and value in hex; prints group, topic, partition, upstream offset, offset and
 * metadata, separated by tabs, after it has encoded them again to the same bytes.
 * "translate BOOTSTRAP ALIAS": reads a group from each line; prints group, topic, partition and offset of
 * RemoteClusterUtils.translateOffsets.
 */
public class CheckpointOracle {
    public static void main(String[] args) throws Exception {
        if (args[0].equals("decode")) {
            decode();
            return;
        }
        Map<String, Object> settings = Map.of("bootstrap.servers", args[1]);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        String group;
        while ((group = in.readLine()) != null) {
            Map<TopicPartition, OffsetAndMetadata> found =
                RemoteClusterUtils.translateOffsets(settings, args[2], group, Duration.ofSeconds(60));
            for (Map.Entry<TopicPartition, OffsetAndMetadata> one : found.entrySet()) {
                TopicPartition partition = one.getKey();
                System.out.println(String.join("\t", group, partition.topic(),
                    Integer.toString(partition.partition()), Long.toString(one.getValue().offset())));
            }
        }
    }

    private static void decode() throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        String line;
        while ((line = in.readLine()) != null) {
            String[] parts = line.split(" ");
            byte[] key = HexFormat.of().parseHex(parts[0]);
            byte[] value = HexFormat.of().parseHex(parts[1]);
            Checkpoint found = Checkpoint.deserializeRecord(new ConsumerRecord<>("t", 0, 0L, key, value));
            if (!Arrays.equals(found.recordKey(), key) || !Arrays.equals(found.recordValue(), value)) {
                throw new IllegalStateException("encoded to other bytes: " + line);
            }
            System.out.println(String.join("\t", found.consumerGroupId(), found.topicPartition().topic(),
                Integer.toString(found.topicPartition().partition()), Long.toString(found.upstreamOffset()),
                Long.toString(found.downstreamOffset()), found.metadata()));
        }
    }
}
