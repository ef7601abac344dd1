"""redis-py against a server: `check.py PORT`."""

import sys
import time

import redis

checks = 0


def expect(got, wanted):
    global checks
    checks += 1
    if got != wanted:
        raise SystemExit(f"check {checks}: got {got!r}, expected {wanted!r}")


def refused(kind, work, text):
    try:
        work()
    except kind as error:
        expect(text in str(error), True)
        return
    raise SystemExit(f"check {checks}: not refused: {text}")


def strings(r):
    expect(r.ping(), True)
    expect(r.set("s", "one", ex=100), True)
    expect(0 < r.ttl("s") <= 100, True)
    expect(r.set("s", "two", nx=True), None)
    expect(r.set("s", "two", xx=True, get=True), "one")
    expect(r.ttl("s"), -1)
    expect((r.append("s", "!"), r.strlen("s"), r.getrange("s", 0, 2)), (4, 4, "two"))
    expect(r.mset({"a": 1, "b": 2}), True)
    expect(r.mget("a", "b", "none"), ["1", "2", None])
    expect((r.incr("a"), r.incrby("a", 10), r.decr("a"), r.incrbyfloat("a", 0.5)), (2, 12, 11, 11.5))
    expect(r.getdel("b"), "2")
    expect(r.exists("a", "b", "s"), 2)
    expect(r.type("a"), "string")
    expect(r.set("binary", bytes(range(256))), True)
    expect(r.strlen("binary"), 256)
    expect(r.delete("binary"), 1)


def expiry(r):
    # Not asked for at once: where a sync takes long, it may have expired before the reply.
    expect(r.set("brief", "x", px=60), True)
    time.sleep(0.12)
    expect((r.get("brief"), r.ttl("brief")), (None, -2))
    r.set("later", "x")
    expect((r.expire("later", 50), r.persist("later"), r.ttl("later")), (True, True, -1))


def hashes(r):
    expect(r.hset("h", mapping={"f": "1", "g": "two", "i": "3"}), 3)
    expect(r.hgetall("h"), {"f": "1", "g": "two", "i": "3"})
    expect((r.hget("h", "g"), r.hmget("h", "f", "none")), ("two", ["1", None]))
    expect((r.hincrby("h", "f", 4), r.hexists("h", "g"), r.hlen("h"), r.hdel("h", "g")), (5, True, 3, 1))
    r.hset("large", mapping={f"f{n}": n for n in range(500)})
    expect(len(dict(r.hscan_iter("large", count=50))), 500)


def sorted_sets(r):
    expect(r.zadd("z", {"a": 1, "b": 2.5, "c": float("-inf")}), 3)
    expect(r.zrange("z", 0, -1, withscores=True)[1:] in ([("a", 1.0), ("b", 2.5)], [["a", 1.0], ["b", 2.5]]), True)
    expect((r.zscore("z", "c"), r.zrank("z", "b"), r.zincrby("z", 2, "a")), (float("-inf"), 2, 3.0))
    expect(r.zrangebyscore("z", "(2.5", "+inf"), ["a"])
    expect(r.zrevrange("z", 0, 0), ["a"])
    expect([tuple(pair) for pair in r.zpopmin("z", 2)], [("c", float("-inf")), ("b", 2.5)])
    r.zadd("many", {f"m{n}": n for n in range(500)})
    expect(len(list(r.zscan_iter("many"))), 500)
    expect((r.zcount("many", 10, 19), r.zremrangebyrank("many", 0, 99), r.zcard("many")), (10, 100, 400))


def pipelines(r):
    with r.pipeline(transaction=False) as pipe:
        for number in range(300):
            pipe.set(f"p:{number:03}", number)
        expect(pipe.execute(), [True] * 300)
    expect(sorted(r.scan_iter("p:*", count=40)), [f"p:{n:03}" for n in range(300)])
    with r.pipeline() as pipe:
        pipe.multi()
        pipe.incr("counter")
        pipe.hset("h", "k", "v")
        expect(pipe.execute(), [1, 1])


def watches(r, other):
    r.set("w", 1)
    with r.pipeline() as pipe:
        pipe.watch("w")
        seen = int(pipe.get("w"))
        pipe.multi()
        pipe.set("w", seen + 1)
        expect(pipe.execute(), [True])
        pipe.watch("w")
        other.set("w", 77)
        pipe.multi()
        pipe.set("w", 0)
        refused(redis.WatchError, pipe.execute, "")
    expect(r.get("w"), "77")
    r.transaction(lambda pipe: (pipe.get("w"), pipe.multi(), pipe.set("w", 78)), "w")
    expect(r.get("w"), "78")


def errors(r):
    refused(redis.ResponseError, lambda: r.incr("h"), "WRONGTYPE")
    refused(redis.ResponseError, lambda: r.execute_command("NO-SUCH-COMMAND"), "unknown command")
    refused(redis.ResponseError, lambda: r.execute_command("GET"), "wrong number of arguments")
    expect(r.ping(), True)


def main():
    port = int(sys.argv[1])
    for protocol in (2, 3):
        r = redis.Redis(port=port, protocol=protocol, decode_responses=True)
        other = redis.Redis(port=port, decode_responses=True)
        r.flushdb()
        strings(r)
        expiry(r)
        hashes(r)
        sorted_sets(r)
        pipelines(r)
        watches(r, other)
        errors(r)
        expect(r.info("server")["redis_mode"], "standalone")
        expect(r.client_setname("checker") and r.client_getname(), "checker")
        second = redis.Redis(port=port, db=1, decode_responses=True)
        expect((second.set("s", "in one"), second.get("s"), r.get("s")), (True, "in one", "two!"))
        expect(second.flushdb(), True)
    print(f"HITHER_COUNT conformance_checks {checks}")


main()
