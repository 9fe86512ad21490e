// softwaremill/kmq's own classes as a process: its marker bytes, its client, its tracker. See test_original.py.

import com.softwaremill.kmq.EndMarker;
import com.softwaremill.kmq.KafkaClients;
import com.softwaremill.kmq.KmqClient;
import com.softwaremill.kmq.KmqConfig;
import com.softwaremill.kmq.MarkerKey;
import com.softwaremill.kmq.MarkerValue;
import com.softwaremill.kmq.RedeliveryTracker;
import com.softwaremill.kmq.StartMarker;
import java.time.Duration;
import java.util.HexFormat;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

public class Original {
    public static void main(String[] arguments) throws Exception {
        switch (arguments[0]) {
            case "bytes" -> bytes(arguments);
            case "client" -> client(arguments);
            case "tracker" -> tracker(arguments);
            default -> throw new IllegalArgumentException(arguments[0]);
        }
    }

    // bytes PARTITION OFFSET DURATION VALUE-IN-HEX: what it writes for these, and what it reads of the value
    static void bytes(String[] given) {
        HexFormat hex = HexFormat.of();
        System.out.println(hex.formatHex(new MarkerKey(Integer.parseInt(given[1]), Long.parseLong(given[2])).serialize()));
        System.out.println(hex.formatHex(new StartMarker(Long.parseLong(given[3])).serialize()));
        System.out.println(hex.formatHex(EndMarker.INSTANCE.serialize()));
        System.out.println(new MarkerValue.MarkerValueDeserializer().deserialize("", hex.parseHex(given[4])));
    }

    static KmqConfig config(String[] given) {
        String queue = given[2];
        return new KmqConfig(queue, queue + "__markers", "kmq-" + queue, "jvm", "jvm-offsets", Long.parseLong(given[3]), 500);
    }

    // client BOOTSTRAP QUEUE TIMEOUT-MS: until its input ends; finishes every message but those that begin with "drop"
    static void client(String[] given) throws Exception {
        Duration wait = Duration.ofMillis(100);
        try (KmqClient<byte[], byte[]> client = new KmqClient<>(config(given), new KafkaClients(given[1]),
                ByteArrayDeserializer.class, ByteArrayDeserializer.class, wait)) {
            while (System.in.available() == 0) {
                for (ConsumerRecord<byte[], byte[]> record : client.nextBatch()) {
                    String value = new String(record.value());
                    if (!value.startsWith("drop")) {
                        client.processed(record).get();
                    }
                    System.out.println(value);
                }
            }
        }
    }

    // tracker BOOTSTRAP QUEUE TIMEOUT-MS: until its input ends
    static void tracker(String[] given) throws Exception {
        RedeliveryTracker.start(new KafkaClients(given[1]), config(given));
        System.out.println("started");
        System.in.read();
        System.exit(0);
    }
}
