//! Delayed delivery, a compacted reader, a Failover subscription and exclusive producers with the Rust client.
//!
//! Usage: programs SERVICE_URL COMMAND TOPIC ARGUMENT...; prints JSON lines without times and ids.

use std::collections::BTreeMap;
use std::error::Error;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::TryStreamExt;
use pulsar::{
    consumer::{ConsumerOptions, InitialPosition, Message},
    producer::{MessageBuilder, Producer, ProducerOptions},
    Consumer, Pulsar, SubType, TokioExecutor,
};
use serde_json::{json, Value};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;
type Client = Pulsar<TokioExecutor>;

/// Longer than any delay; a message that is not there by then is lost.
const WAIT: Duration = Duration::from_secs(90);
/// A broker may deliver up to one tick before the time asked for.
const TICK_MS: u128 = 1000;
/// What the table view holds is what was written last for each key; an empty value removes the key.
const FIRST: [(&str, &str); 5] = [("a", "1"), ("b", "2"), ("a", "3"), ("c", "4"), ("c", "")];
const SECOND: [(&str, &str); 4] = [("b", "5"), ("d", "6"), ("a", ""), ("e", "7")];

fn print(line: Value) {
    println!("{line}");
}

fn now_ms() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()
}

fn text(message: &Message<Vec<u8>>) -> String {
    String::from_utf8_lossy(&message.payload.data).into_owned()
}

fn partition(topic: &str) -> i32 {
    topic.rsplit_once("-partition-").map_or(-1, |(_, number)| number.parse().unwrap())
}

async fn next(consumer: &mut Consumer<Vec<u8>, TokioExecutor>) -> Outcome<Message<Vec<u8>>> {
    Ok(tokio::time::timeout(WAIT, consumer.try_next()).await??.ok_or("the consumer ended")?)
}

async fn subscribe(
    client: &Client,
    topic: &str,
    subscription: &str,
    kind: SubType,
    name: &str,
    priority: i32,
) -> Outcome<Consumer<Vec<u8>, TokioExecutor>> {
    let options =
        ConsumerOptions::default().with_initial_position(InitialPosition::Earliest).with_priority_level(priority);
    let builder = client.consumer().with_topic(topic).with_subscription(subscription).with_subscription_type(kind);
    Ok(builder.with_consumer_name(name).with_options(options).build().await?)
}

async fn delayed_send(client: &Client, topic: &str, delays: &[String]) -> Outcome {
    subscribe(client, topic, "exclusive", SubType::Exclusive, "c", 0).await?.close().await?;
    subscribe(client, topic, "shared", SubType::Shared, "c", 0).await?.close().await?;
    let mut producer = client.producer().with_topic(topic).build().await?;
    for (index, delay) in delays.iter().enumerate() {
        let wait = Duration::from_secs(delay.parse()?);
        let due = now_ms() + wait.as_millis();
        let message = MessageBuilder::new(&mut producer).with_content(delay.clone()).with_property("due", due.to_string());
        let message = match (wait.is_zero(), index % 2) {
            (true, _) => message,
            (false, 0) => message.delay(wait)?,
            (false, _) => message.deliver_at(SystemTime::now() + wait)?,
        };
        message.send_non_blocking().await?.await?;
        print(json!({"sent": delay}));
    }
    Ok(())
}

async fn receive(client: &Client, topic: &str, name: &str, kind: SubType, count: usize) -> Outcome {
    let mut consumer = subscribe(client, topic, name, kind, "c", 0).await?;
    for _ in 0..count {
        let message = next(&mut consumer).await?;
        let properties = &message.metadata().properties;
        let due: u128 = properties.iter().find(|pair| pair.key == "due").ok_or("no due time")?.value.parse()?;
        print(json!({"subscription": name, "value": text(&message), "early": now_ms() + TICK_MS < due}));
        consumer.ack(&message).await?;
    }
    consumer.close().await?;
    Ok(())
}

async fn delayed_receive(client: &Client, topic: &str, count: usize) -> Outcome {
    receive(client, topic, "shared", SubType::Shared, count).await?;
    let values: Vec<String> = compacted(client, topic, count).await?.iter().map(text).collect();
    print(json!({"reader": values}));
    Ok(())
}

/// The messages of a topic by a reader that asks for the compacted topic.
async fn compacted(client: &Client, topic: &str, count: usize) -> Outcome<Vec<Message<Vec<u8>>>> {
    let options = ConsumerOptions::default().with_initial_position(InitialPosition::Earliest).read_compacted(true);
    let builder = client.reader().with_topic(topic).with_subscription("reader").with_options(options);
    let mut reader = builder.into_reader::<Vec<u8>>().await?;
    let mut messages = Vec::new();
    while messages.len() < count {
        messages.push(tokio::time::timeout(WAIT, reader.try_next()).await??.ok_or("the reader ended")?);
    }
    Ok(messages)
}

async fn put(producer: &mut Producer<TokioExecutor>, pairs: &[(&str, &str)]) -> Outcome {
    for (key, value) in pairs {
        let message = MessageBuilder::new(producer).with_content(value.to_string()).with_partition_key(*key);
        message.send_non_blocking().await?.await?;
    }
    Ok(())
}

/// The crate has no table view: this one is built on compacted readers.
async fn table_view(client: &Client, topic: &str) -> Outcome {
    let mut producer = client.producer().with_topic(topic).build().await?;
    put(&mut producer, &FIRST).await?;
    print(json!({"entries": entries(client, topic, FIRST.len()).await?}));
    put(&mut producer, &SECOND).await?;
    print(json!({"entries": entries(client, topic, FIRST.len() + SECOND.len()).await?}));
    Ok(())
}

async fn entries(client: &Client, topic: &str, count: usize) -> Outcome<BTreeMap<String, String>> {
    let mut table = BTreeMap::new();
    for message in compacted(client, topic, count).await? {
        let key = message.key().ok_or("a message has no key")?;
        if message.payload.data.is_empty() {
            table.remove(&key);
        } else {
            table.insert(key, text(&message));
        }
    }
    Ok(table)
}

/// Receives until it is killed; leaves messages whose value begins with "hold" unacknowledged.
async fn failover(client: &Client, topic: &str, name: &str, priority: i32) -> Outcome {
    let mut consumer = subscribe(client, topic, "s", SubType::Failover, name, priority).await?;
    print(json!({"state": "subscribed"}));
    while let Some(message) = consumer.try_next().await? {
        let value = text(&message);
        if !value.starts_with("hold") {
            consumer.ack(&message).await?;
        }
        print(json!({"partition": partition(&message.topic), "value": value}));
    }
    Ok(())
}

async fn exclusive_producer(client: &Client, topic: &str, name: &str, mode: &str) -> Outcome {
    let access_mode = Some(if mode == "wait" { 2 } else { 1 });
    print(json!({"state": "opening"}));
    let options = ProducerOptions { access_mode, ..Default::default() };
    let mut producer = match client.producer().with_topic(topic).with_name(name).with_options(options).build().await {
        Ok(producer) => producer,
        Err(error) => {
            // "… Server error (Some(ProducerFenced)): …": the code is the same for all servers, the words are not.
            let said = error.to_string();
            let code = said.split_once("(Some(").and_then(|(_, rest)| rest.split_once(')')).map(|(code, _)| code);
            print(json!({"state": "refused", "error": code.unwrap_or(&said)}));
            return Ok(());
        }
    };
    print(json!({"state": "open"}));
    producer.send_non_blocking(name.to_string()).await?.await?;
    print(json!({"state": "sent"}));
    tokio::signal::ctrl_c().await?;
    producer.close().await?;
    print(json!({"state": "closed"}));
    Ok(())
}

#[tokio::main]
async fn main() -> Outcome {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, command, topic, rest @ ..] = arguments.as_slice() else {
        return Err("usage: programs SERVICE_URL COMMAND TOPIC ARGUMENT...".into());
    };
    let client: Client = Pulsar::builder(url, TokioExecutor).build().await?;
    match (command.as_str(), rest) {
        ("delayed", delays) => {
            delayed_send(&client, topic, delays).await?;
            receive(&client, topic, "exclusive", SubType::Exclusive, delays.len()).await?;
            delayed_receive(&client, topic, delays.len()).await
        }
        ("delayed-send", delays) => delayed_send(&client, topic, delays).await,
        ("delayed-receive", [count]) => delayed_receive(&client, topic, count.parse()?).await,
        ("table-view", []) => table_view(&client, topic).await,
        ("failover", [name, priority]) => failover(&client, topic, name, priority.parse()?).await,
        ("exclusive-producer", [name, mode]) => exclusive_producer(&client, topic, name, mode).await,
        _ => Err(format!("unknown command {command:?} with {} arguments", rest.len()).into()),
    }
}
