import java.util.Random;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;

/**
 * Messages of 1 KiB written to a topic, or read from it, with the Java client.
 *
 * <p>Usage: Load SERVICE_URL produce|consume WARM_TOPIC TOPIC WARM_COUNT COUNT unbatched|batched; prints the seconds
 * for the topic, between lines of the client's log. The other topic warms up the virtual machine.
 */
public final class Load {
    private static final int BYTES = 1024;

    /** Most messages without a receipt, as {@code WINDOW} in broker_load.py. */
    private static final int WINDOW = 2000;

    private static final int WAIT_S = 120;

    private static double produce(PulsarClient client, String topic, int count, boolean batched) throws Exception {
        byte[] payload = new byte[BYTES];
        new Random(1).nextBytes(payload);
        ProducerBuilder<byte[]> builder = client.newProducer()
                .topic(topic)
                .enableBatching(batched)
                .maxPendingMessages(WINDOW)
                .blockIfQueueFull(true);
        if (batched) {
            builder.batchingMaxMessages(1000).batchingMaxBytes(128 << 10).batchingMaxPublishDelay(1, TimeUnit.MILLISECONDS);
        }
        Semaphore receipts = new Semaphore(0);
        AtomicReference<Throwable> failure = new AtomicReference<>();
        try (Producer<byte[]> producer = builder.create()) {
            long begin = System.nanoTime();
            for (int number = 0; number < count; number++) {
                producer.sendAsync(payload).whenComplete((id, error) -> {
                    if (error != null) {
                        failure.set(error);
                    }
                    receipts.release();
                });
            }
            if (!receipts.tryAcquire(count, WAIT_S, TimeUnit.SECONDS)) {
                throw new IllegalStateException("no receipts for " + WAIT_S + " s");
            }
            if (failure.get() != null) {
                throw new IllegalStateException(failure.get());
            }
            return (System.nanoTime() - begin) / 1e9;
        }
    }

    private static double consume(PulsarClient client, String topic, int count) throws Exception {
        long begin = System.nanoTime();
        try (Consumer<byte[]> consumer = client.newConsumer()
                .topic(topic)
                .subscriptionName("java")
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                .subscribe()) {
            for (int number = 1; number <= count; number++) {
                Message<byte[]> message = consumer.receive(WAIT_S, TimeUnit.SECONDS);
                if (message == null || message.size() != BYTES) {
                    throw new IllegalStateException("message " + number + " of " + count + " is missing");
                }
                if (number % 1000 == 0) {
                    consumer.acknowledgeCumulativeAsync(message);
                }
            }
            return (System.nanoTime() - begin) / 1e9;
        }
    }

    public static void main(String[] arguments) throws Exception {
        try (PulsarClient client = PulsarClient.builder().serviceUrl(arguments[0]).build()) {
            double seconds = 0;
            for (int turn = 0; turn < 2; turn++) {
                String topic = arguments[2 + turn];
                int count = Integer.parseInt(arguments[4 + turn]);
                seconds = arguments[1].equals("produce")
                        ? produce(client, topic, count, arguments[6].equals("batched"))
                        : consume(client, topic, count);
            }
            System.out.println("seconds: " + seconds);
        }
    }
}
