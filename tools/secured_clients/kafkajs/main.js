// Produce and consume with kafkajs on a secured node: main.js PROPERTIES TOPIC GROUP. Ends with 3 if the login fails, with
// 4 if the user may not write.
const fs = require("fs");
const { Kafka, logLevel } = require("kafkajs");

const COUNT = 100, WRONG_PASSWORD = 3, NOT_ALLOWED = 4;
const [path, topic, group] = process.argv.slice(2);
const settings = Object.fromEntries(
  fs.readFileSync(path, "utf8").split("\n").filter((line) => line.includes("=") && !line.startsWith("#"))
    .map((line) => [line.slice(0, line.indexOf("=")), line.slice(line.indexOf("=") + 1)]),
);

function end(error) {
  for (let cause = error; cause; cause = cause.cause) {
    if (cause.name === "KafkaJSSASLAuthenticationError") process.exit(WRONG_PASSWORD);
    if (cause.type === "TOPIC_AUTHORIZATION_FAILED") process.exit(NOT_ALLOWED);
  }
  console.error(error);
  process.exit(1);
}

async function main() {
  if (settings["security.protocol"] !== "SASL_SSL") throw new Error(`${path} is not for SASL_SSL`);
  const kafka = new Kafka({
    brokers: settings["bootstrap.servers"].split(","),
    ssl: { ca: [fs.readFileSync(settings["ssl.ca.location"], "utf8")] },
    sasl: {
      mechanism: settings["sasl.mechanism"].toLowerCase(),
      username: settings["sasl.username"],
      password: settings["sasl.password"],
    },
    logLevel: logLevel.NOTHING,
    retry: { retries: 2 },
  });
  const producer = kafka.producer();
  await producer.connect();
  for (let i = 0; i < COUNT; i++) await producer.send({ topic, messages: [{ key: group, value: String(i) }] });
  await producer.disconnect();
  const consumer = kafka.consumer({ groupId: group });
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  let next = 0;
  await new Promise((resolve, reject) => {
    setTimeout(() => reject(new Error(`only ${next} records were read`)), 60000).unref();
    consumer.run({
      eachMessage: async ({ message }) => {
        if (String(message.key) === group && String(message.value) === String(next)) next++;
        if (next === COUNT) resolve();
      },
    }).catch(reject);
  });
  await consumer.disconnect();
  console.log(COUNT, "records");
}

main().catch(end);
