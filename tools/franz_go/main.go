// Consume, transform, produce with franz-go: main HOST:PORT[,HOST:PORT ...] SECONDS [848].
//
// A producer writes transactions of 100 numbers for so many seconds and aborts every third; at the same time members of
// a group, one of which leaves and one of which comes later, copy what is committed to another topic with their offsets
// in the same transaction (GroupTransactSession); a reader of committed records counts. With 848 the group is one of the
// new protocol, which franz-go has to be told. Nodes may die meanwhile: what failed is aborted and done again. If a
// commit of the producer fails with an unknown outcome, its numbers are not written again. Ends with 1 unless each
// number is there once; of a transaction of unknown outcome, all numbers or none.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const inTransaction = 100

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// written describes what the producer did: it committed the numbers below `numbers`, except that it does not know the
// outcome of the transactions that begin with a number in `unknown`.
type written struct {
	numbers int
	unknown map[int]bool
}

// check counts the numbers that a reader of committed records lacks, and those that it got twice. A transaction of
// unknown outcome lacks nothing if all of its numbers are missing.
func (w written) check(seen map[string]int) (missing, doubled int) {
	for first := 0; first < w.numbers; first += inTransaction {
		absent := 0
		for i := first; i < first+inTransaction; i++ {
			switch times := seen[strconv.Itoa(i)]; {
			case times == 0:
				absent++
			case times > 1:
				doubled++
			}
		}
		if !w.unknown[first] || absent < inTransaction {
			missing += absent
		}
	}
	return missing, doubled
}

// end commits or aborts a transaction, and returns the error of a commit that failed. The transaction is over then.
func end(ctx context.Context, p *kgo.Client, try kgo.TransactionEndTry) error {
	err := p.EndTransaction(ctx, try)
	abort("producer", err, func() error { return p.EndTransaction(ctx, kgo.TryAbort) })
	return err
}

// abort tries to abort while there is an error, as the documentation of EndTransaction demands. franz-go returns a dial
// error at once if two FindCoordinator requests in a row reach a node that is down.
func abort(who string, err error, again func() error) {
	for deadline := time.Now().Add(time.Minute); err != nil; err = again() {
		fmt.Println(who, "end:", err)
		if time.Now().After(deadline) {
			panic(err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// isNotCommitted reports whether a commit with this error has certainly not happened.
func isNotCommitted(err error) bool {
	return errors.Is(err, kerr.OperationNotAttempted) || errors.Is(err, kerr.TransactionAbortable)
}

// write produces transactions until the time is over.
func write(ctx context.Context, p *kgo.Client, life time.Duration) written {
	w, failed := written{unknown: map[int]bool{}}, 0
	for stop, t := time.Now().Add(life), 0; time.Now().Before(stop); t++ {
		must(p.BeginTransaction())
		commit := t%3 != 2
		promise := kgo.AbortingFirstErrPromise(p)
		for i := 0; i < inTransaction; i++ {
			v := strconv.Itoa(w.numbers + i)
			if !commit {
				v = "aborted"
			}
			p.Produce(ctx, kgo.StringRecord(v), promise.Promise())
		}
		must(p.Flush(ctx))
		if err := promise.Err(); err != nil {
			fmt.Println("producer:", err)
			end(ctx, p, kgo.TryAbort)
			failed++
			continue
		}
		err := end(ctx, p, kgo.TransactionEndTry(commit))
		if isNotCommitted(err) {
			failed++
		} else if commit {
			if err != nil {
				w.unknown[w.numbers] = true
			}
			w.numbers += inTransaction
		}
		time.Sleep(50 * time.Millisecond)
	}
	fmt.Println("numbers", w.numbers, "transactions that failed and were aborted:", failed, "of unknown outcome:", len(w.unknown))
	return w
}

func main() {
	seeds := kgo.SeedBrokers(strings.Split(os.Args[1], ",")...)
	// Without it, a node that is killed as soon as a client has connected ends the program: franz-go suspects a lack of SASL.
	retry := kgo.AlwaysRetryEOF()
	seconds, err := strconv.Atoi(os.Args[2])
	must(err)
	life := time.Duration(seconds) * time.Second
	ctx := context.Background()
	if len(os.Args) > 3 && os.Args[3] == "848" {
		ctx = context.WithValue(ctx, "opt_in_kafka_next_gen_balancer_beta", true)
	}
	run := strconv.FormatInt(time.Now().UnixNano(), 36)
	in, out, group := "in-"+run, "out-"+run, "g-"+run
	admin, err := kgo.NewClient(seeds, retry)
	must(err)
	adm := kadm.NewClient(admin)
	made, err := adm.CreateTopics(ctx, 4, -1, nil, in, out)
	must(err)
	must(made.Error())
	p, err := kgo.NewClient(seeds, retry, kgo.DefaultProduceTopic(in), kgo.TransactionalID("p-"+run))
	must(err)
	writer := make(chan written, 1)
	go func() { writer <- write(ctx, p, life); p.Close() }()
	var wg sync.WaitGroup
	stop := make(chan struct{})
	// A member whose LeaveGroup was lost blocks each rebalance until its session ends, and each new coordinator starts the
	// session again. The default of 45 s would not end between two deaths.
	session := kgo.SessionTimeout(6 * time.Second)
	open := func(id int) *kgo.GroupTransactSession {
		s, err := kgo.NewGroupTransactSession(seeds, retry, session, kgo.WithContext(ctx), kgo.ConsumerGroup(group), kgo.ConsumeTopics(in),
			kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.TransactionalID(fmt.Sprintf("w%d-%s", id, run)), kgo.DefaultProduceTopic(out),
			kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.RequireStableFetchOffsets(), kgo.FetchMaxBytes(20000))
		must(err)
		return s
	}
	worker := func(id int, stay time.Duration) {
		defer wg.Done()
		s := open(id)
		defer func() { s.Close() }()
		end := time.After(stay)
		for {
			select {
			case <-stop:
				return
			case <-end:
				return
			default:
			}
			pctx, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
			fetches := s.PollRecords(pctx, inTransaction)
			cancel()
			if fetches.NumRecords() == 0 {
				continue
			}
			must(s.Begin())
			fetches.EachRecord(func(r *kgo.Record) { s.Produce(ctx, kgo.SliceRecord(r.Value), nil) })
			if _, err := s.End(ctx, kgo.TryCommit); err != nil {
				abort(fmt.Sprint("worker ", id), err, func() error { _, err := s.End(ctx, kgo.TryAbort); return err })
				// This session continues from the offsets before the transaction, although its commit may have happened.
				s.Close()
				s = open(id) // asks for the committed offsets
			}
		}
	}
	wg.Add(3)
	go worker(1, time.Hour)
	go worker(2, 3*time.Second)
	go func() { time.Sleep(2 * time.Second); worker(3, time.Hour) }()
	c, err := kgo.NewClient(seeds, retry, kgo.ConsumeTopics(out), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	must(err)
	seen, total, lacks := map[string]int{}, written{}, true
	for deadline := time.Now().Add(life + 90*time.Second); lacks && time.Now().Before(deadline); {
		select {
		case total = <-writer:
		default:
		}
		pctx, cancel := context.WithTimeout(ctx, time.Second)
		c.PollFetches(pctx).EachRecord(func(r *kgo.Record) { seen[string(r.Value)]++ })
		cancel()
		missing, _ := total.check(seen)
		lacks = total.numbers == 0 || missing > 0
	}
	time.Sleep(time.Second)
	close(stop)
	wg.Wait()
	pctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	c.PollFetches(pctx).EachRecord(func(r *kgo.Record) { seen[string(r.Value)]++ })
	cancel()
	missing, doubled := total.check(seen)
	fmt.Println("numbers", total.numbers, "missing:", missing, "doubled:", doubled, "aborted ones seen:", seen["aborted"])
	if total.numbers == 0 || missing > 0 || doubled > 0 || seen["aborted"] > 0 {
		os.Exit(1)
	}
}
