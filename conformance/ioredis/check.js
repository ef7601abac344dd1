// ioredis against a server: `node check.js PORT`.

const assert = require("node:assert");
const Redis = require("ioredis");

let checks = 0;
function expect(got, wanted) {
  checks += 1;
  assert.deepStrictEqual(got, wanted, `check ${checks}`);
}

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function strings(r) {
  expect(await r.set("s", "one", "EX", 100), "OK");
  expect(await r.set("s", "two", "NX"), null);
  expect(await r.append("s", "!"), 4);
  expect(await r.get("s"), "one!");
  expect(await r.mset({ a: 1, b: 2 }), "OK");
  expect(await r.mget("a", "b", "none"), ["1", "2", null]);
  expect([await r.incr("a"), await r.incrby("a", 10), await r.decr("a")], [2, 12, 11]);
  const bytes = Buffer.from([0, 13, 10, 255]);
  await r.set("binary", bytes);
  expect(await r.getBuffer("binary"), bytes);
  await r.set("brief", "x", "PX", 60);
  await sleep(120);
  expect(await r.get("brief"), null);
}

async function collections(r) {
  expect(await r.hset("h", { f: "1", g: "two" }), 2);
  expect(await r.hgetall("h"), { f: "1", g: "two" });
  expect(await r.hincrby("h", "f", 4), 5);
  expect(await r.zadd("z", 1, "a", 2.5, "b"), 2);
  expect(await r.zrange("z", 0, -1, "WITHSCORES"), ["a", "1", "b", "2.5"]);
  expect(await r.zrangebyscore("z", "(1", "+inf"), ["b"]);
  expect(await r.zincrby("z", 3, "a"), "4");
}

async function many(r) {
  const pipeline = r.pipeline();
  for (let n = 0; n < 300; n += 1) pipeline.set(`p:${n}`, n);
  const replies = await pipeline.exec();
  expect(replies.every(([error, reply]) => error === null && reply === "OK"), true);
  const found = new Set();
  for await (const keys of r.scanStream({ match: "p:*", count: 50 })) keys.forEach((key) => found.add(key));
  expect(found.size, 300);
  for (let n = 0; n < 100; n += 1) await r.hset("large", `f${n}`, n);
  let fields = 0;
  for await (const pairs of r.hscanStream("large")) fields += pairs.length / 2;
  expect(fields, 100);
}

async function transactions(r, other) {
  expect(await r.multi().incr("n").hset("h", "k", "v").exec(), [[null, 1], [null, 1]]);
  await r.set("w", 1);
  await r.watch("w");
  expect(await r.multi().set("w", 2).exec(), [[null, "OK"]]);
  await r.watch("w");
  await other.set("w", 77);
  expect(await r.multi().set("w", 3).exec(), null);
  expect(await r.get("w"), "77");
}

async function errors(r) {
  await assert.rejects(r.incr("h"), /WRONGTYPE/);
  await assert.rejects(r.call("NO-SUCH-COMMAND"), /unknown command/);
  expect(await r.ping(), "PONG");
}

async function main() {
  const port = Number(process.argv[2]);
  const [r, other, second] = [new Redis(port), new Redis(port), new Redis(port, { db: 1 })];
  await r.flushdb();
  await strings(r);
  await collections(r);
  await many(r);
  await transactions(r, other);
  await errors(r);
  expect(await second.get("s"), null);
  // It does not speak RESP3.
  const hello = await r.call("HELLO", "2");
  expect(hello[hello.indexOf("proto") + 1], 2);
  [r, other, second].forEach((client) => client.disconnect());
  console.log(`HITHER_COUNT conformance_checks ${checks}`);
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
