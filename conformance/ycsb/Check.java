// YCSB's workloads A to F against a server: `Check PORT`. YCSB's core makes the records, chooses the operations, checks every value that is read
// (`dataintegrity`) and counts; the binding is our own, because YCSB's for Redis is not among the published packages. The data are laid out as there: a record
// is a hash, and one sorted set holds all keys, for scans. Every operation must be OK: a record is asked for only once its insertion was acknowledged.

import java.io.IOException;
import java.io.PrintStream;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.Vector;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.htrace.core.Tracer;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.exceptions.JedisException;
import site.ycsb.ByteIterator;
import site.ycsb.ClientThread;
import site.ycsb.DB;
import site.ycsb.DBWrapper;
import site.ycsb.Status;
import site.ycsb.StringByteIterator;
import site.ycsb.measurements.Measurements;
import site.ycsb.measurements.exporter.MeasurementsExporter;
import site.ycsb.workloads.CoreWorkload;

public final class Check {
    private static final int RECORDS = 200;
    private static final int OPERATIONS = 400;
    private static final int THREADS = 8;
    /** A reply waits for the disk: the library's two seconds are too little for a busy one, and look like a lost connection. */
    private static final int PATIENCE_MS = 60_000;

    /** A workload: its letter, the shares of its operations, and how it chooses records. */
    private record Mix(char letter, double read, double update, double insert, double scan, double change, String chosen) {}

    private static final List<Mix> MIXES = List.of(
        new Mix('a', 0.5, 0.5, 0, 0, 0, "zipfian"),
        new Mix('b', 0.95, 0.05, 0, 0, 0, "zipfian"),
        new Mix('c', 1, 0, 0, 0, 0, "zipfian"),
        new Mix('d', 0.95, 0, 0.05, 0, 0, "latest"),
        new Mix('e', 0, 0, 0.05, 0.95, 0, "zipfian"),
        new Mix('f', 0.5, 0, 0, 0, 0.5, "zipfian"));

    /** Why the first operation failed that did. */
    private static final AtomicReference<String> FIRST_FAILURE = new AtomicReference<>();

    /** A connection, as YCSB wants one for each of its threads. */
    private static final class Records extends DB {
        private static final String INDEX = "_indices";
        private final int port;
        private Jedis jedis;

        Records(int port) {
            this.port = port;
        }

        @Override
        public void init() {
            jedis = new Jedis("127.0.0.1", port, PATIENCE_MS);
        }

        @Override
        public void cleanup() {
            jedis.close();
        }

        private interface Action {
            boolean run();
        }

        /** OK if the action says so; what it throws must not end YCSB's thread, which would end the program as if all were well. */
        private static Status status(String what, Action action) {
            String why = "not as expected";
            try {
                if (action.run()) {
                    return Status.OK;
                }
            } catch (JedisException error) {
                why = error.toString();
            }
            FIRST_FAILURE.compareAndSet(null, what + ": " + why);
            return Status.ERROR;
        }

        private boolean fetch(String key, Set<String> fields, Map<String, ByteIterator> result) {
            if (fields == null) {
                StringByteIterator.putAllAsByteIterators(result, jedis.hgetAll(key));
                return !result.isEmpty();
            }
            List<String> names = List.copyOf(fields);
            List<String> values = jedis.hmget(key, names.toArray(new String[0]));
            for (int place = 0; place < names.size(); place++) {
                if (values.get(place) == null) {
                    return false;
                }
                result.put(names.get(place), new StringByteIterator(values.get(place)));
            }
            return true;
        }

        private boolean store(String key, Map<String, ByteIterator> values) {
            return jedis.hmset(key, StringByteIterator.getStringMap(values)).equals("OK");
        }

        @Override
        public Status read(String table, String key, Set<String> fields, Map<String, ByteIterator> result) {
            return status("reading " + key, () -> fetch(key, fields, result));
        }

        @Override
        public Status update(String table, String key, Map<String, ByteIterator> values) {
            return status("updating " + key, () -> store(key, values));
        }

        @Override
        public Status insert(String table, String key, Map<String, ByteIterator> values) {
            return status("inserting " + key, () -> store(key, values) && jedis.zadd(INDEX, key.hashCode(), key) == 1);
        }

        @Override
        public Status delete(String table, String key) {
            return status("deleting " + key, () -> jedis.del(key) == 1 && jedis.zrem(INDEX, key) == 1);
        }

        @Override
        public Status scan(String table, String start, int count, Set<String> fields, Vector<HashMap<String, ByteIterator>> result) {
            return status("scanning from " + start, () -> {
                List<String> keys = jedis.zrangeByScore(INDEX, start.hashCode(), Double.POSITIVE_INFINITY, 0, count);
                for (String key : keys) {
                    HashMap<String, ByteIterator> values = new HashMap<>();
                    if (!fetch(key, fields, values)) {
                        return false;
                    }
                    result.add(values);
                }
                return !keys.isEmpty() && keys.size() <= count;
            });
        }
    }

    /** How often YCSB has seen each operation end how, since the start: `READ OK`. */
    private static Map<String, Integer> counts() throws IOException {
        Map<String, Integer> counts = new TreeMap<>();
        Measurements.getMeasurements().exportMeasurements(new MeasurementsExporter() {
            @Override
            public void write(String operation, String what, int count) {
                if (what.startsWith("Return=")) {
                    counts.put(operation + " " + what.substring("Return=".length()), count);
                }
            }

            @Override
            public void write(String operation, String what, long count) {
                write(operation, what, Math.toIntExact(Math.min(count, Integer.MAX_VALUE)));
            }

            @Override
            public void write(String operation, String what, double value) {}

            @Override
            public void close() {}
        });
        return counts;
    }

    private static Properties properties(Mix mix) {
        Properties all = new Properties();
        all.setProperty("recordcount", "" + RECORDS);
        all.setProperty("operationcount", "" + OPERATIONS);
        all.setProperty("requestdistribution", mix.chosen);
        all.setProperty("readproportion", "" + mix.read);
        all.setProperty("updateproportion", "" + mix.update);
        all.setProperty("insertproportion", "" + mix.insert);
        all.setProperty("scanproportion", "" + mix.scan);
        all.setProperty("readmodifywriteproportion", "" + mix.change);
        all.setProperty("maxscanlength", "20");
        all.setProperty("dataintegrity", "true");
        all.setProperty("fieldlengthdistribution", "constant");
        return all;
    }

    /** One phase of a workload, as YCSB's client runs it. */
    private static void phase(int port, Properties properties, CoreWorkload workload, boolean transactions, int count) throws Exception {
        CountDownLatch ended = new CountDownLatch(THREADS);
        List<ClientThread> clients = new ArrayList<>();
        try (Tracer tracer = new Tracer.Builder("ycsb").build()) {
            for (int number = 0; number < THREADS; number++) {
                DB db = new DBWrapper(new Records(port), tracer);
                db.setProperties(properties);
                ClientThread client = new ClientThread(db, transactions, workload, properties, count / THREADS, 0, ended);
                client.setThreadId(number);
                client.setThreadCount(THREADS);
                clients.add(client);
            }
            clients.forEach(client -> new Thread(client).start());
            ended.await();
        }
        int done = clients.stream().mapToInt(ClientThread::getOpsDone).sum();
        if (done != count) {
            throw new AssertionError(done + " operations were done, not " + count);
        }
    }

    private static void expect(Mix mix, boolean right, String what) {
        if (!right) {
            throw new AssertionError("workload " + mix.letter + ": " + what + "; first failure: " + FIRST_FAILURE.get());
        }
    }

    /** Loads and runs a workload; how many operations were OK, values that were checked among them. */
    private static int check(int port, Mix mix) throws Exception {
        Map<String, Integer> before = counts();
        Properties properties = properties(mix);
        try (Jedis jedis = new Jedis("127.0.0.1", port, PATIENCE_MS)) {
            jedis.flushDB();
            CoreWorkload workload = new CoreWorkload();
            workload.init(properties);
            phase(port, properties, workload, false, RECORDS);
            expect(mix, jedis.zcard(Records.INDEX) == RECORDS && jedis.dbSize() == RECORDS + 1, "the load is not complete");
            phase(port, properties, workload, true, OPERATIONS);
            workload.cleanup();
            Map<String, Integer> now = counts();
            now.replaceAll((name, count) -> count - before.getOrDefault(name, 0));
            now.values().removeIf(count -> count == 0);
            System.out.println("workload " + mix.letter + ": " + now);
            expect(mix, now.keySet().stream().allMatch(name -> name.endsWith(" OK")), "not all is OK: " + now);
            int inserted = now.getOrDefault("INSERT OK", 0);
            expect(mix, jedis.zcard(Records.INDEX) == inserted, "the sorted set does not hold what was inserted");
            expect(mix, (inserted > RECORDS) == (mix.insert > 0), "insertions: " + inserted);
            boolean verified = now.getOrDefault("VERIFY OK", 0).equals(now.getOrDefault("READ OK", 0));
            expect(mix, verified, "not every record that was read was checked");
            for (var share : Map.of("READ", mix.read + mix.change, "UPDATE", mix.update + mix.change, "SCAN", mix.scan).entrySet()) {
                int count = now.getOrDefault(share.getKey() + " OK", 0);
                expect(mix, Math.abs(count - share.getValue() * OPERATIONS) <= OPERATIONS * 0.1, share + ", but " + count);
            }
            return now.values().stream().mapToInt(Integer::intValue).sum();
        }
    }

    public static void main(String[] args) throws Exception {
        Measurements.setProperties(new Properties());
        System.setErr(new PrintStream(System.err, true) {
            @Override
            public void println(String line) {
                // Each thread of YCSB says how it measures.
                if (!line.startsWith("DBWrapper: ")) {
                    super.println(line);
                }
            }
        });
        int operations = 0;
        for (Mix mix : MIXES) {
            operations += check(Integer.parseInt(args[0]), mix);
        }
        System.out.println("HITHER_COUNT conformance_checks " + operations);
    }
}
