// go-redis against a server: `conformance PORT`.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

var (
	checks int
	ctx    = context.Background()
)

func expect(got, wanted any) {
	checks++
	if !reflect.DeepEqual(got, wanted) {
		fmt.Fprintf(os.Stderr, "check %d: got %#v, expected %#v\n", checks, got, wanted)
		os.Exit(1)
	}
}

func plain(r *redis.Client) {
	expect(r.Set(ctx, "s", "one", 100*time.Second).Err(), nil)
	expect(r.SetNX(ctx, "s", "two", 0).Val(), false)
	expect(r.TTL(ctx, "s").Val() > 0, true)
	expect(r.Append(ctx, "s", "!").Val(), int64(4))
	expect(r.Get(ctx, "s").Val(), "one!")
	expect(r.Get(ctx, "none").Err(), redis.Nil)
	expect(r.MSet(ctx, "a", 1, "b", 2).Err(), nil)
	expect(r.MGet(ctx, "a", "b", "none").Val(), []any{"1", "2", nil})
	expect(r.IncrBy(ctx, "a", 11).Val(), int64(12))
	expect(r.Set(ctx, "brief", "x", 60*time.Millisecond).Err(), nil)
	time.Sleep(120 * time.Millisecond)
	expect(r.Exists(ctx, "brief").Val(), int64(0))
}

func collections(r *redis.Client) {
	expect(r.HSet(ctx, "h", "f", "1", "g", "two").Val(), int64(2))
	expect(r.HGetAll(ctx, "h").Val(), map[string]string{"f": "1", "g": "two"})
	expect(r.HIncrBy(ctx, "h", "f", 4).Val(), int64(5))
	expect(r.ZAdd(ctx, "z", redis.Z{Score: 1, Member: "a"}, redis.Z{Score: 2.5, Member: "b"}).Val(), int64(2))
	expect(r.ZRangeWithScores(ctx, "z", 0, -1).Val(), []redis.Z{{Score: 1, Member: "a"}, {Score: 2.5, Member: "b"}})
	expect(r.ZRangeByScore(ctx, "z", &redis.ZRangeBy{Min: "(1", Max: "+inf"}).Val(), []string{"b"})
	expect(r.ZIncrBy(ctx, "z", 3, "a").Val(), 4.0)
}

func many(r *redis.Client) {
	_, err := r.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for n := range 300 {
			pipe.Set(ctx, fmt.Sprintf("p:%d", n), n, 0)
			pipe.HSet(ctx, "large", fmt.Sprintf("f%d", n), n)
		}
		return nil
	})
	expect(err, nil)
	found := map[string]bool{}
	keys := r.Scan(ctx, 0, "p:*", 50).Iterator()
	for keys.Next(ctx) {
		found[keys.Val()] = true
	}
	expect(keys.Err(), nil)
	expect(len(found), 300)
	words := 0
	fields := r.HScan(ctx, "large", 0, "", 50).Iterator()
	for fields.Next(ctx) {
		words++
	}
	expect(words, 600)
}

func transactions(r *redis.Client) {
	replies, err := r.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.Incr(ctx, "n")
		pipe.HSet(ctx, "h", "k", "v")
		return nil
	})
	expect(err, nil)
	expect(len(replies), 2)
	r.Set(ctx, "w", 1, 0)
	attempt := func(between func()) error {
		return r.Watch(ctx, func(tx *redis.Tx) error {
			n, err := tx.Get(ctx, "w").Int()
			if err != nil {
				return err
			}
			between()
			_, err = tx.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
				pipe.Set(ctx, "w", n+1, 0)
				return nil
			})
			return err
		}, "w")
	}
	expect(attempt(func() {}), nil)
	expect(errors.Is(attempt(func() { r.Set(ctx, "w", 77, 0) }), redis.TxFailedErr), true)
	expect(r.Get(ctx, "w").Val(), "77")
}

func refusals(r *redis.Client) {
	expect(strings.HasPrefix(r.Incr(ctx, "h").Err().Error(), "WRONGTYPE"), true)
	expect(strings.Contains(r.Do(ctx, "NO-SUCH-COMMAND").Err().Error(), "unknown command"), true)
	expect(r.Ping(ctx).Val(), "PONG")
}

func main() {
	for _, protocol := range []int{2, 3} {
		r := redis.NewClient(&redis.Options{
			Addr: "127.0.0.1:" + os.Args[1], Protocol: protocol,
			// A reply waits for the disk: the library's three seconds are too little for a busy one, and look like a lost connection.
			ReadTimeout: time.Minute, WriteTimeout: time.Minute,
		})
		expect(r.FlushDB(ctx).Err(), nil)
		plain(r)
		collections(r)
		many(r)
		transactions(r)
		refusals(r)
		expect(r.Close(), nil)
	}
	fmt.Printf("HITHER_COUNT conformance_checks %d\n", checks)
}
