import java.io.FileReader;
import java.util.Arrays;
import java.util.Properties;
import org.apache.kafka.common.errors.AuthenticationException;
import org.apache.kafka.common.errors.AuthorizationException;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Materialized;

/**
 * Counts the words of topic "lines" in a state store and writes each new count to topic "counts", exactly once:
 * WordCount BOOTSTRAP STATE [APPLICATION PROPERTIES]. Ends with 3 if the login fails, with 4 if something is denied.
 */
public class WordCount {
    static final int WRONG_PASSWORD = 3, NOT_ALLOWED = 4;

    public static void main(String[] given) throws Exception {
        Properties conf = new Properties();
        if (given.length > 3) {
            try (FileReader file = new FileReader(given[3])) {
                conf.load(file);
            }
        }
        conf.put(StreamsConfig.APPLICATION_ID_CONFIG, given.length > 2 ? given[2] : "word-count");
        conf.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, given[0]);
        conf.put(StreamsConfig.STATE_DIR_CONFIG, given[1]);
        conf.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        conf.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 100);
        conf.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.String().getClass());
        conf.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.String().getClass());
        conf.put(StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest");
        conf.put(StreamsConfig.consumerPrefix("session.timeout.ms"), 10_000);
        StreamsBuilder builder = new StreamsBuilder();
        builder.<String, String>stream("lines")
            .flatMapValues(line -> Arrays.asList(line.split(" ")))
            .groupBy((key, word) -> word)
            .count(Materialized.as("counts-store"))
            .toStream()
            .mapValues(count -> Long.toString(count))
            .to("counts");
        KafkaStreams streams = new KafkaStreams(builder.build(), conf);
        streams.setUncaughtExceptionHandler(failure -> {
            for (Throwable cause = failure; cause != null; cause = cause.getCause()) {
                if (cause instanceof AuthenticationException) Runtime.getRuntime().halt(WRONG_PASSWORD);
                if (cause instanceof AuthorizationException) Runtime.getRuntime().halt(NOT_ALLOWED);
            }
            System.out.println("a thread failed and is replaced: " + failure);
            return StreamThreadExceptionResponse.REPLACE_THREAD;
        });
        Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
        streams.start();
    }
}
