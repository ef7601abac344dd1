// Jedis against a server: `Check PORT`. The commands that YCSB's Redis binding uses are among them: HMSET, HGETALL, HMGET, DEL, ZADD, ZREM, ZRANGEBYSCORE.

import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.Pipeline;
import redis.clients.jedis.RedisProtocol;
import redis.clients.jedis.Response;
import redis.clients.jedis.Transaction;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.params.ScanParams;
import redis.clients.jedis.params.SetParams;
import redis.clients.jedis.resps.ScanResult;

public final class Check {
    /** A reply waits for the disk: the library's two seconds are too little for a busy one, and look like a lost connection. */
    private static final int PATIENCE_MS = 60_000;
    private static int checks = 0;

    private static void expect(Object got, Object wanted) {
        checks += 1;
        if (!Objects.equals(got, wanted)) {
            throw new AssertionError("check " + checks + ": got " + got + ", expected " + wanted);
        }
    }

    private static void strings(Jedis r) throws InterruptedException {
        expect(r.set("s", "one", SetParams.setParams().ex(100)), "OK");
        expect(r.set("s", "two", SetParams.setParams().nx()), null);
        expect(r.append("s", "!"), 4L);
        expect(r.get("s"), "one!");
        expect(r.mset("a", "1", "b", "2"), "OK");
        ArrayList<String> values = new ArrayList<>(r.mget("a", "b"));
        expect(values, List.of("1", "2"));
        expect(r.incrBy("a", 11), 12L);
        expect(r.psetex("brief", 60, "x"), "OK");
        Thread.sleep(120);
        expect(r.exists("brief"), false);
    }

    /** What YCSB's binding does with a record. */
    private static void records(Jedis r) {
        Map<String, String> record = new HashMap<>();
        for (int field = 0; field < 10; field++) {
            record.put("field" + field, "v".repeat(100));
        }
        for (int n = 0; n < 100; n++) {
            expect(r.hmset("user" + n, record), "OK");
            expect(r.zadd("_indices", n * 1.5, "user" + n), 1L);
        }
        expect(r.hgetAll("user7"), record);
        expect(r.hmget("user7", "field0", "none").get(1), null);
        expect(r.zrangeByScore("_indices", 15, Double.POSITIVE_INFINITY, 0, 3), List.of("user10", "user11", "user12"));
        expect(r.del("user7"), 1L);
        expect(r.zrem("_indices", "user7"), 1L);
        expect(r.zcard("_indices"), 99L);
    }

    private static void many(Jedis r) {
        Pipeline pipeline = r.pipelined();
        List<Response<String>> replies = new ArrayList<>();
        for (int n = 0; n < 300; n++) {
            replies.add(pipeline.set("p:" + n, "" + n));
        }
        pipeline.sync();
        expect(replies.stream().allMatch(reply -> reply.get().equals("OK")), true);
        Set<String> found = new HashSet<>();
        String cursor = ScanParams.SCAN_POINTER_START;
        do {
            ScanResult<String> page = r.scan(cursor, new ScanParams().match("p:*").count(50));
            found.addAll(page.getResult());
            cursor = page.getCursor();
        } while (!cursor.equals(ScanParams.SCAN_POINTER_START));
        expect(found.size(), 300);
    }

    private static void transactions(Jedis r, Jedis other) {
        Transaction first = r.multi();
        Response<Long> count = first.incr("n");
        first.hset("h", "k", "v");
        expect(first.exec().size(), 2);
        expect(count.get(), 1L);
        r.set("w", "1");
        r.watch("w");
        Transaction inTime = r.multi();
        inTime.set("w", "2");
        expect(inTime.exec(), List.of("OK"));
        expect(r.get("w"), "2");
        r.watch("w");
        other.set("w", "77");
        Transaction late = r.multi();
        late.set("w", "3");
        expect(late.exec(), null);
        expect(r.get("w"), "77");
    }

    private static void errors(Jedis r) {
        try {
            r.incr("h");
            throw new AssertionError("INCR of a hash was not refused");
        } catch (JedisDataException refused) {
            expect(refused.getMessage().startsWith("WRONGTYPE"), true);
        }
        expect(r.ping(), "PONG");
    }

    public static void main(String[] args) throws InterruptedException {
        HostAndPort server = new HostAndPort("127.0.0.1", Integer.parseInt(args[0]));
        for (RedisProtocol protocol : new RedisProtocol[] {RedisProtocol.RESP2, RedisProtocol.RESP3}) {
            DefaultJedisClientConfig config = DefaultJedisClientConfig.builder().protocol(protocol).timeoutMillis(PATIENCE_MS).build();
            try (Jedis r = new Jedis(server, config); Jedis other = new Jedis(server, config)) {
                r.flushDB();
                strings(r);
                records(r);
                many(r);
                transactions(r, other);
                errors(r);
            }
        }
        System.out.println("HITHER_COUNT conformance_checks " + checks);
    }
}
