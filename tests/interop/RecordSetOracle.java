// SPDX-License-Identifier: Apache-2.0
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.record.MemoryRecords;
import org.apache.kafka.common.record.Record;
import org.apache.kafka.common.record.RecordBatch;

/**
 * Reads record sets with Kafka's own classes.
 *
 * Each line of stdin is a record set in hex; each line of stdout has its records, separated by spaces, or "error" and
 * why. A record is offset:timestamp:timestamp type:magic:codec:key:value:headers, bytes in base64, "-" for null.
 */
public class RecordSetOracle {
    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, true, "UTF-8");
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            try {
                out.println(read(ByteBuffer.wrap(bytes(line))));
            } catch (Exception failure) {
                out.println("error " + failure);
            }
        }
    }

    private static String read(ByteBuffer data) {
        StringBuilder text = new StringBuilder();
        int size = data.remaining();
        int whole = 0;
        for (RecordBatch batch : MemoryRecords.readableRecords(data).batches()) {
            batch.ensureValid();
            whole += batch.sizeInBytes();
            for (Record one : batch) {
                one.ensureValid();
                text.append(text.length() == 0 ? "" : " ").append(one.offset()).append(':').append(one.timestamp());
                text.append(':').append(batch.timestampType().id).append(':').append(batch.magic());
                text.append(':').append(batch.compressionType().id);
                text.append(':').append(base64(one.key())).append(':').append(base64(one.value())).append(':');
                for (Header header : one.headers()) {
                    ByteBuffer value = header.value() == null ? null : ByteBuffer.wrap(header.value());
                    text.append(base64(ByteBuffer.wrap(header.key().getBytes(StandardCharsets.UTF_8))));
                    text.append('=').append(base64(value)).append(',');
                }
            }
        }
        if (whole != size) {
            throw new IllegalStateException((size - whole) + " bytes are left over");
        }
        return text.toString();
    }

    private static String base64(ByteBuffer data) {
        if (data == null) {
            return "-";
        }
        byte[] bytes = new byte[data.remaining()];
        data.duplicate().get(bytes);
        return Base64.getEncoder().withoutPadding().encodeToString(bytes);
    }

    private static byte[] bytes(String hex) {
        byte[] bytes = new byte[hex.length() / 2];
        for (int i = 0; i < bytes.length; i++) {
            bytes[i] = (byte) Integer.parseInt(hex.substring(2 * i, 2 * i + 2), 16);
        }
        return bytes;
    }
}
