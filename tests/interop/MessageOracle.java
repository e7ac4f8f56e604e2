// SPDX-License-Identifier: Apache-2.0
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import org.apache.kafka.common.message.ApiMessageType;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.ObjectSerializationCache;

/**
 * Reads messages with Kafka's own generated classes, and writes them again.
 *
 * Each line of stdin is "apiKey request|response version hex"; each line of stdout is the message written again in hex,
 * and what was read as JSON, or "error" and why.
 */
public class MessageOracle {
    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, true, "UTF-8");
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ", -1);
            try {
                out.println(answer(Short.parseShort(words[0]), words[1], Short.parseShort(words[2]), words[3]));
            } catch (Exception failure) {
                out.println("error " + failure);
            }
        }
    }

    private static String answer(short apiKey, String kind, short version, String hex) throws Exception {
        ApiMessageType type = ApiMessageType.fromApiKey(apiKey);
        ApiMessage message = kind.equals("request") ? type.newRequest() : type.newResponse();
        ByteBuffer data = ByteBuffer.wrap(bytes(hex));
        message.read(new ByteBufferAccessor(data), version);
        if (data.hasRemaining()) {
            throw new IllegalStateException(data.remaining() + " bytes are left over");
        }
        ObjectSerializationCache cache = new ObjectSerializationCache();
        ByteBuffer again = ByteBuffer.allocate(message.size(cache, version));
        message.write(new ByteBufferAccessor(again), cache, version);
        Object json = Class.forName(message.getClass().getName() + "JsonConverter")
            .getMethod("write", message.getClass(), short.class)
            .invoke(null, message, version);
        return hex(again.array()) + " " + json;
    }

    private static byte[] bytes(String hex) {
        byte[] bytes = new byte[hex.length() / 2];
        for (int i = 0; i < bytes.length; i++) {
            bytes[i] = (byte) Integer.parseInt(hex.substring(2 * i, 2 * i + 2), 16);
        }
        return bytes;
    }

    private static String hex(byte[] bytes) {
        StringBuilder text = new StringBuilder();
        for (byte one : bytes) {
            text.append(String.format("%02x", one));
        }
        return text.toString();
    }
}
