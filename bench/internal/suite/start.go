package suite

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/warmfleet/warmfleet/bench/internal/bench"
	"github.com/warmfleet/warmfleet/internal/worker"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/plan"
)

const (
	// stamp prints when the program that a step or a peer was asked to run came to run.
	stamp = "exec date +%s%N"
	// rawPeer is what a submission is compared with.
	rawPeer = "JetStream publish to deliver, fork and exec"
	// settled is how long a fleet is left alone between plans: the pool is filled again, and
	// what a plan leaves to do is done.
	settled = 100 * time.Millisecond
)

// Start measures from a submission to its first process.
func Start() bench.Benchmark { return bench.Benchmark{Name: "start", Run: start} }

func start(ctx context.Context, e *bench.Env) error {
	t, err := smallTreeOf(e)
	if err != nil {
		return err
	}
	dir := t.dir
	target := bench.Target{P50: 15, Ratio: 4}
	err = starts(ctx, e, starting{what: "warm, plain directory", tree: dir, warm: 2, target: target})
	if err == nil {
		err = starts(ctx, e, starting{what: "cold, plain directory", tree: dir})
	}
	if err != nil || !installed("git") {
		return err
	}
	err = errors.Join(
		tool(ctx, dir, "git", "init", "-q"), tool(ctx, dir, "git", "add", "-A"),
		tool(ctx, dir, "git", "-c", "user.name=bench", "-c", "user.email=bench@localhost", "commit", "-q", "-m", "bench"),
	)
	if err != nil {
		return err
	}
	return starts(ctx, e, starting{what: "warm, git work tree", tree: dir, warm: 2, target: target})
}

// starting is one way of starting plans.
type starting struct {
	what   string
	tree   string
	warm   int // how many inits wait
	target bench.Target
}

// starts measures it on a fleet of its own, in this process.
func starts(ctx context.Context, e *bench.Env, how starting) error {
	dir := filepath.Join(e.Dir, strconv.FormatInt(time.Now().UnixNano(), 36))
	s, f, err := startWorking(ctx, dir, worker.Config{Slots: 2, Warm: how.warm, AllowPaths: []string{how.tree}})
	if err != nil {
		return err
	}
	defer s.close()
	raw, err := s.rawQueue(ctx, shell())
	if err != nil {
		return err
	}
	stages := stageTimes{}
	body := onePlan(plan.Resource{Path: how.tree, Host: hostID}, stamp)
	got, err := bench.InTurn(ctx, pick(e, 100, 3),
		func(ctx context.Context) (time.Duration, error) {
			time.Sleep(settled)
			return s.startOne(ctx, f, body, stages)
		},
		func(ctx context.Context) (time.Duration, error) { return raw.startOne(ctx) },
	)
	if err != nil {
		return err
	}
	err = e.Add(bench.Result{
		What: "submit to first process, " + how.what, Ours: got[0], Peer: rawPeer, Theirs: got[1], Target: how.target,
	})
	return errors.Join(err, stages.add(e))
}

// stageTimes are times from the submission to each type of event.
type stageTimes map[string]bench.Samples

// add adds a row for each of those that lie on the way to the first process.
func (t stageTimes) add(e *bench.Env) error {
	var err error
	for _, typ := range []string{events.TypeAccepted, events.TypeClaimed, events.TypeStepStarted} {
		err = errors.Join(err, e.Add(bench.Result{What: "... submit to its event " + typ, Ours: t[typ]}))
	}
	return err
}

// startOne runs a plan whose step is stamp and returns the time from its submission to its first process.
func (s *server) startOne(ctx context.Context, f *follower, body []byte, stages stageTimes) (time.Duration, error) {
	id := events.NewID()
	began := time.Now()
	records, err := s.finish(ctx, f, id, body)
	if err != nil {
		return 0, err
	}
	for _, r := range records {
		times := stages[r.Event.Kind()]
		times.Take(r.Event.Time.Sub(began))
		stages[r.Event.Kind()] = times
	}
	return s.firstProcess(ctx, id, began)
}

// firstProcess is how long after a moment the step of a plan began that has ended.
func (s *server) firstProcess(ctx context.Context, id string, began time.Time) (time.Duration, error) {
	var out bytes.Buffer
	for c, err := range s.Output.Read(ctx, events.OutputQuery{PlanID: id}) {
		if err != nil {
			return 0, err
		}
		out.Write(c.Data)
	}
	return since(began, out.Bytes())
}

// since reads what stamp printed.
func since(began time.Time, printed []byte) (time.Duration, error) {
	ns, err := strconv.ParseInt(string(bytes.TrimSpace(printed)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read the time of a process: %w", err)
	}
	return time.Unix(0, ns).Sub(began), nil
}

// rawQueue is a JetStream work queue of its own on the same server, whose consumer forks:
// the least that any queue with durable messages costs.
type rawQueue struct {
	js   jetstream.JetStream
	argv []string
	done chan rawResult
}

type rawResult struct {
	printed []byte
	err     error
}

const rawSubject = "bench.raw"

func (s *server) rawQueue(ctx context.Context, shell []string) (*rawQueue, error) {
	q := &rawQueue{js: s.JetStream, argv: append(shell, stamp), done: make(chan rawResult, 1)}
	c, err := s.rawConsumer(ctx)
	if err != nil {
		return nil, err
	}
	s.tasks.Go(func() {
		s.eachRaw(c, func(m jetstream.Msg) error {
			out, err := exec.Command(q.argv[0], q.argv[1:]...).Output()
			q.done <- rawResult{out, err}
			return m.DoubleAck(s.life)
		})
	})
	return q, nil
}

// rawConsumer makes the stream and its consumer.
func (s *server) rawConsumer(ctx context.Context) (jetstream.Consumer, error) {
	const name = "BENCH_RAW"
	_, err := s.JetStream.CreateOrUpdateStream(ctx, jetstream.StreamConfig{Name: name, Subjects: []string{rawSubject}, Retention: jetstream.WorkQueuePolicy})
	if err != nil {
		return nil, err
	}
	return s.JetStream.CreateOrUpdateConsumer(ctx, name, jetstream.ConsumerConfig{Durable: "raw", AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: 20000})
}

// eachRaw handles messages one after the other until the server is closed.
func (s *server) eachRaw(c jetstream.Consumer, handle func(jetstream.Msg) error) {
	for s.life.Err() == nil {
		b, err := c.Fetch(1, jetstream.FetchMaxWait(time.Second))
		if err != nil {
			return
		}
		for m := range b.Messages() {
			if handle(m) != nil {
				return
			}
		}
	}
}

// startOne publishes a message and returns the time until the process that it causes runs.
func (q *rawQueue) startOne(ctx context.Context) (time.Duration, error) {
	began := time.Now()
	if _, err := q.js.Publish(ctx, rawSubject, []byte("{}")); err != nil {
		return 0, err
	}
	select {
	case r := <-q.done:
		if r.err != nil {
			return 0, r.err
		}
		return since(began, r.printed)
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}
