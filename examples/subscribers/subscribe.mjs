// Follow the platform's events with a stock NATS client of another language.
//
//     npm ci
//     node subscribe.mjs FILE [--history]      FILE: shiftwork monitor-credentials NAME
//
// Prints each event as a line: its number, its type, its subject and its body.
import { readFileSync } from "node:fs";
import { connect } from "@nats-io/transport-node";
import { jetstream } from "@nats-io/jetstream";

const [file, option] = process.argv.slice(2);
const given = JSON.parse(readFileSync(file, "utf8"));
const client = await connect({ servers: given.url.replace("nats://", ""), user: given.user, pass: given.password });

function show(number, message) {
  console.log(number, message.headers.get("ce-type"), message.subject, message.string());
}

if (option === "--history") {
  const stream = jetstream(client, { domain: given.domain });
  const durable = await stream.consumers.get(given.stream, given.durable);
  for await (const message of await durable.consume()) {
    show(message.seq, message);
    message.ack(); // the next start goes on behind it
  }
} else {
  const events = client.subscribe(given.live);
  await client.flush();
  console.log("subscribed");
  for await (const message of events) {
    // The numbers are consecutive: a gap shows that events were missed.
    show(message.headers.get("Nats-Sequence"), message);
  }
}
