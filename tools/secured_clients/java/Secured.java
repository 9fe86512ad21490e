// Produce and consume with Kafka's Java client on a secured node: Secured PROPERTIES TOPIC GROUP. Ends with 3 if the login
// fails, with 4 if the user may not write.

import java.io.FileReader;
import java.time.Duration;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.errors.AuthenticationException;
import org.apache.kafka.common.errors.TopicAuthorizationException;

public class Secured {
    static final int COUNT = 100, WRONG_PASSWORD = 3, NOT_ALLOWED = 4;

    public static void main(String[] args) throws Exception {
        try {
            run(args[0], args[1], args[2]);
        } catch (Exception error) {
            for (Throwable cause = error; cause != null; cause = cause.getCause()) {
                if (cause instanceof AuthenticationException) System.exit(WRONG_PASSWORD);
                if (cause instanceof TopicAuthorizationException) System.exit(NOT_ALLOWED);
            }
            throw error;
        }
    }

    static void run(String path, String topic, String group) throws Exception {
        Properties settings = new Properties();
        try (FileReader file = new FileReader(path)) {
            settings.load(file);
        }
        for (String each : List.of("key", "value")) {
            settings.put(each + ".serializer", "org.apache.kafka.common.serialization.StringSerializer");
            settings.put(each + ".deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        }
        settings.put("group.id", group);
        settings.put("auto.offset.reset", "earliest");
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings)) {
            for (int i = 0; i < COUNT; i++) producer.send(new ProducerRecord<>(topic, group, "" + i)).get();
        }
        long end = System.nanoTime() + Duration.ofMinutes(1).toNanos();
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings)) {
            consumer.subscribe(List.of(topic));
            int next = 0;
            while (next < COUNT) {
                if (System.nanoTime() > end) throw new IllegalStateException("only " + next + " records were read");
                for (ConsumerRecord<String, String> each : consumer.poll(Duration.ofSeconds(1)))
                    if (group.equals(each.key()) && each.value().equals("" + next)) next++;
            }
            consumer.commitSync();
        }
        System.out.println(COUNT + " records");
    }
}
