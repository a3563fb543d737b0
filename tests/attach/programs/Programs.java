import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.MessageIdAdv;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.transaction.Transaction;

/**
 * Transactions with the Java client, committed and aborted, until a file exists.
 *
 * <p>Usage: Programs SERVICE_URL TOPIC STOP_FILE SEED. Prints one JSON line for each transaction, with its id, its
 * outcome as far as the client knows it, and the position of every message that was acknowledged.
 */
public final class Programs {
    private static final int LIMIT_S = 120;
    private static final long PAUSE_MS = 20;
    private static final long RETRY_MS = 500;

    private static String line(Transaction transaction, String outcome, List<String> positions) {
        String id = transaction == null
                ? "null"
                : "\"" + transaction.getTxnID().getMostSigBits() + ":" + transaction.getTxnID().getLeastSigBits() + "\"";
        return "{\"txn\": " + id + ", \"outcome\": \"" + outcome + "\", \"messages\": [" + String.join(", ", positions)
                + "]}";
    }

    private static String position(int number, MessageId id) {
        MessageIdAdv at = (MessageIdAdv) id;
        return "[" + number + ", " + at.getLedgerId() + ", " + at.getEntryId() + "]";
    }

    public static void main(String[] arguments) throws Exception {
        Path stop = Path.of(arguments[2]);
        Random random = new Random(Long.parseLong(arguments[3]));
        int number = 0;
        try (PulsarClient client = PulsarClient.builder()
                        .serviceUrl(arguments[0])
                        .enableTransaction(true)
                        .operationTimeout(LIMIT_S, TimeUnit.SECONDS)
                        .build();
                Producer<byte[]> producer = client.newProducer()
                        .topic(arguments[1])
                        .enableBatching(false)
                        .sendTimeout(0, TimeUnit.SECONDS)
                        .create()) {
            System.out.println("{\"ready\": true}");
            System.out.flush();
            while (!Files.exists(stop)) {
                int kind = random.nextInt(5);
                Transaction transaction = null;
                List<String> positions = new ArrayList<>();
                String outcome = "unknown";
                try {
                    if (kind > 0) {
                        transaction = client.newTransaction()
                                .withTransactionTimeout(LIMIT_S, TimeUnit.SECONDS)
                                .build()
                                .get(LIMIT_S, TimeUnit.SECONDS);
                    }
                    List<CompletableFuture<MessageId>> sent = new ArrayList<>();
                    List<Integer> numbers = new ArrayList<>();
                    for (int count = 1 + random.nextInt(5); count > 0; count--) {
                        byte[] value = Integer.toString(number).getBytes();
                        numbers.add(number++);
                        sent.add((transaction == null ? producer.newMessage() : producer.newMessage(transaction))
                                .value(value)
                                .sendAsync());
                    }
                    for (int at = 0; at < sent.size(); at++) {
                        positions.add(position(numbers.get(at), sent.get(at).get(LIMIT_S, TimeUnit.SECONDS)));
                    }
                    if (transaction == null) {
                        outcome = "plain";
                    } else if (kind % 2 == 0) {
                        transaction.commit().get(LIMIT_S, TimeUnit.SECONDS);
                        outcome = "committed";
                    } else {
                        transaction.abort().get(LIMIT_S, TimeUnit.SECONDS);
                        outcome = "aborted";
                    }
                    Thread.sleep(PAUSE_MS);
                } catch (Exception error) {
                    System.err.println(error);
                    Thread.sleep(RETRY_MS);
                }
                System.out.println(line(transaction, outcome, positions));
                System.out.flush();
            }
        }
    }
}
