import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerEventListener;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerAccessMode;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.TableView;
import org.apache.pulsar.client.api.TypedMessageBuilder;

/**
 * Delayed delivery, table views, Failover subscriptions and exclusive producers with the Java client.
 *
 * <p>Usage: Programs SERVICE_URL COMMAND TOPIC ARGUMENT...; prints JSON lines without times and ids.
 */
public final class Programs {
    /** Longer than any delay; a message that is not there by then is lost. */
    private static final int WAIT_S = 90;

    /** A broker may deliver up to one tick before the time asked for. */
    private static final long TICK_MS = 1000;

    /** A table view holds what was written last for each key; an empty value removes the key. */
    private static final String[][] FIRST = {{"a", "1"}, {"b", "2"}, {"a", "3"}, {"c", "4"}, {"c", ""}};

    private static final String[][] SECOND = {{"b", "5"}, {"d", "6"}, {"a", ""}, {"e", "7"}};
    private static final List<String> LISTENED = List.of("b", "d", "e");

    /** Values are plain words and numbers, which need no escapes. */
    private static String json(Object value) {
        if (value instanceof Map<?, ?> map) {
            return map.entrySet().stream()
                    .map(entry -> json(entry.getKey()) + ": " + json(entry.getValue()))
                    .collect(Collectors.joining(", ", "{", "}"));
        }
        if (value instanceof List<?> list) {
            return list.stream().map(Programs::json).collect(Collectors.joining(", ", "[", "]"));
        }
        return value instanceof String ? '"' + value.toString() + '"' : String.valueOf(value);
    }

    private static synchronized void show(Object... pairs) {
        Map<String, Object> line = new TreeMap<>();
        for (int at = 0; at < pairs.length; at += 2) {
            line.put((String) pairs[at], pairs[at + 1]);
        }
        System.out.println(json(line));
        System.out.flush();
    }

    private static int partition(String topic) {
        int at = topic.lastIndexOf("-partition-");
        return at < 0 ? -1 : Integer.parseInt(topic.substring(at + "-partition-".length()));
    }

    private static Consumer<byte[]> subscribe(PulsarClient client, String topic, String name, SubscriptionType type)
            throws PulsarClientException {
        return client.newConsumer()
                .topic(topic)
                .subscriptionName(name)
                .subscriptionType(type)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                .subscribe();
    }

    private static void delayedSend(PulsarClient client, String topic, List<String> delays) throws Exception {
        subscribe(client, topic, "exclusive", SubscriptionType.Exclusive).close();
        subscribe(client, topic, "shared", SubscriptionType.Shared).close();
        Producer<byte[]> producer = client.newProducer().topic(topic).create();
        for (int index = 0; index < delays.size(); index++) {
            String delay = delays.get(index);
            long seconds = Long.parseLong(delay);
            long due = System.currentTimeMillis() + seconds * 1000;
            TypedMessageBuilder<byte[]> message =
                    producer.newMessage().value(delay.getBytes()).property("due", Long.toString(due));
            if (seconds > 0 && index % 2 == 0) {
                message.deliverAfter(seconds, TimeUnit.SECONDS);
            } else if (seconds > 0) {
                message.deliverAt(due);
            }
            message.send();
            show("sent", delay);
        }
    }

    private static void receive(PulsarClient client, String topic, String name, SubscriptionType type, int count)
            throws Exception {
        try (Consumer<byte[]> consumer = subscribe(client, topic, name, type)) {
            for (int received = 0; received < count; received++) {
                Message<byte[]> message = consumer.receive(WAIT_S, TimeUnit.SECONDS);
                long due = Long.parseLong(message.getProperty("due"));
                boolean early = System.currentTimeMillis() + TICK_MS < due;
                show(
                        "subscription", name,
                        "value", new String(message.getValue()),
                        "early", early,
                        "redeliveries", message.getRedeliveryCount());
                consumer.acknowledge(message);
            }
        }
    }

    private static void delayedReceive(PulsarClient client, String topic, int count) throws Exception {
        receive(client, topic, "shared", SubscriptionType.Shared, count);
        List<String> values = new ArrayList<>();
        try (Reader<byte[]> reader =
                client.newReader().topic(topic).startMessageId(MessageId.earliest).create()) {
            while (values.size() < count) {
                values.add(new String(reader.readNext(WAIT_S, TimeUnit.SECONDS).getValue()));
            }
        }
        show("reader", values);
    }

    private static void put(Producer<byte[]> producer, String[][] pairs) throws Exception {
        for (String[] pair : pairs) {
            producer.newMessage().key(pair[0]).value(pair[1].getBytes()).send();
        }
    }

    private static Map<String, String> entries(TableView<byte[]> view) {
        Map<String, String> found = new TreeMap<>();
        view.forEach((key, value) -> found.put(key, new String(value)));
        return found;
    }

    private static void tableView(PulsarClient client, String topic) throws Exception {
        Producer<byte[]> producer =
                client.newProducer().topic(topic).enableBatching(false).create();
        put(producer, FIRST);
        TableView<byte[]> view =
                client.newTableView(Schema.BYTES).topic(topic).create();
        show("entries", entries(view), "get", new String(view.get("a")), "missing", view.get("c"));
        Map<String, String> heard = new ConcurrentHashMap<>();
        view.listen((key, value) -> {
            if (value != null && value.length > 0) {
                heard.put(key, new String(value));
            }
        });
        put(producer, SECOND);
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(WAIT_S);
        while (!(heard.keySet().containsAll(LISTENED) && !view.containsKey("a"))) {
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException("the view stays at " + entries(view));
            }
            Thread.sleep(50);
        }
        List<List<String>> updates = new ArrayList<>();
        new TreeMap<>(heard).forEach((key, value) -> updates.add(List.of(key, value)));
        show("updates", updates);
        show("entries", entries(view));
        view.close();
    }

    /** Receives until it is killed; messages whose value begins with "hold" stay unacknowledged. */
    private static void failover(PulsarClient client, String topic, String name, int priority) throws Exception {
        ConsumerEventListener listener = new ConsumerEventListener() {
            @Override
            public void becameActive(Consumer<?> consumer, int partition) {
                show("active", true, "partition", partition);
            }

            @Override
            public void becameInactive(Consumer<?> consumer, int partition) {
                show("active", false, "partition", partition);
            }
        };
        Consumer<byte[]> consumer = client.newConsumer()
                .topic(topic)
                .subscriptionName("s")
                .subscriptionType(SubscriptionType.Failover)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                .consumerName(name)
                .priorityLevel(priority)
                .consumerEventListener(listener)
                .acknowledgmentGroupTime(0, TimeUnit.SECONDS)
                .subscribe();
        show("state", "subscribed");
        while (true) {
            Message<byte[]> message = consumer.receive();
            String value = new String(message.getValue());
            if (!value.startsWith("hold")) {
                consumer.acknowledge(message);
            }
            show("partition", partition(message.getTopicName()), "value", value);
        }
    }

    private static void exclusiveProducer(PulsarClient client, String topic, String name, String mode)
            throws Exception {
        ProducerAccessMode access =
                mode.equals("wait") ? ProducerAccessMode.WaitForExclusive : ProducerAccessMode.Exclusive;
        show("state", "opening");
        Producer<byte[]> producer;
        try {
            producer = client.newProducer()
                    .topic(topic)
                    .producerName(name)
                    .accessMode(access)
                    .create();
        } catch (PulsarClientException error) {
            show("state", "refused", "error", error.getClass().getSimpleName());
            return;
        }
        show("state", "open");
        producer.send(name.getBytes());
        // An interrupt ends a JVM; its last work is to run this.
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            try {
                producer.close();
                show("state", "closed");
            } catch (PulsarClientException error) {
                show("state", "not closed");
            }
        }));
        show("state", "sent");
        new CountDownLatch(1).await();
    }

    public static void main(String[] arguments) throws Exception {
        String command = arguments[1];
        String topic = arguments[2];
        List<String> rest = List.of(arguments).subList(3, arguments.length);
        try (PulsarClient client = PulsarClient.builder().serviceUrl(arguments[0]).build()) {
            switch (command) {
                case "delayed" -> {
                    delayedSend(client, topic, rest);
                    receive(client, topic, "exclusive", SubscriptionType.Exclusive, rest.size());
                    delayedReceive(client, topic, rest.size());
                }
                case "delayed-send" -> delayedSend(client, topic, rest);
                case "delayed-receive" -> delayedReceive(client, topic, Integer.parseInt(rest.get(0)));
                case "table-view" -> tableView(client, topic);
                case "failover" -> failover(client, topic, rest.get(0), Integer.parseInt(rest.get(1)));
                case "exclusive-producer" -> exclusiveProducer(client, topic, rest.get(0), rest.get(1));
                default -> throw new IllegalArgumentException("unknown command " + command);
            }
        }
    }
}
