package suite

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/warmfleet/warmfleet/bench/internal/bench"
	"github.com/warmfleet/warmfleet/internal/worker"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/plan"
)

const (
	// textSize is how large the text is that the step prints again and again, in bytes.
	textSize = 16 << 20
	// outputRate is how much is to be drained in a second, in megabytes, and outputMemory how much the worker may grow, in MiB.
	outputRate, outputMemory = 500, 64
)

// output measures a step that prints a gigabyte: what is kept of it is bounded, and it has to be drained all the same.
func output(ctx context.Context, e *bench.Env, t tree) error {
	text := filepath.Join(t.dir, "text")
	if err := os.WriteFile(text, content(random(), textSize), 0o644); err != nil {
		return err
	}
	secrets := filepath.Join(e.Dir, "secrets")
	names, err := writeSecrets(secrets)
	if err != nil {
		return err
	}
	s, f, err := startWorking(ctx, filepath.Join(e.Dir, "output"), worker.Config{Slots: 1, Warm: 1, AllowPaths: []string{t.dir}, SecretsDir: secrets})
	if err != nil {
		return err
	}
	defer s.close()
	times := pick(e, 64, 4)
	script := fmt.Sprintf("i=0; while [ $i -lt %d ]; do cat text; i=$((i+1)); done", times)
	printer := printing{s: s, f: f, dir: t.dir, script: script, gigabytes: float64(times) * textSize / 1e9}
	for _, names := range [][]string{nil, names} {
		if err := printer.measure(ctx, e, names); err != nil {
			return err
		}
	}
	return nil
}

// writeSecrets makes a provider of secrets as projects have them: a token, a password, a key of many lines.
func writeSecrets(dir string) (names []string, err error) {
	err = os.Mkdir(dir, 0o700)
	key := "-----BEGIN PRIVATE KEY-----\n" + strings.Repeat("MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj\n", 16) + "-----END PRIVATE KEY-----\n"
	for name, value := range map[string]string{"token": "ghp_k3Jd92kdLq0s8dK2ks9Dk2", "password": "correct horse", "key": key} {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, name), []byte(value), 0o600))
		names = append(names, name)
	}
	return names, err
}

// printing is a step that prints, and the same command without a fleet.
type printing struct {
	s         *server
	f         *follower
	dir       string
	script    string
	gigabytes float64
}

func (p printing) measure(ctx context.Context, e *bench.Env, secrets []string) error {
	what := fmt.Sprintf("draining what a step prints (>= %d MB/s)", outputRate)
	if len(secrets) > 0 {
		what = fmt.Sprintf("... while %d secrets are masked", len(secrets))
	}
	body := planOf(p.script)
	body.Resource, body.Secrets = &plan.Resource{Path: p.dir, Host: hostID}, secrets
	var grew bench.Samples
	got, err := bench.InTurn(ctx, pick(e, 5, 1),
		func(ctx context.Context) (time.Duration, error) {
			before, err := resetPeak()
			if err != nil {
				return 0, err
			}
			d, err := p.step(ctx, body.Canonical())
			after, peakErr := peakMemory()
			grew = append(grew, after-before)
			return d, errors.Join(err, peakErr)
		},
		func(ctx context.Context) (time.Duration, error) {
			c := exec.CommandContext(ctx, "sh", "-c", "("+p.script+") | cat >/dev/null")
			c.Dir = p.dir
			d, err := bench.Time(c.Run)
			return p.each(d), err
		})
	if err != nil {
		return err
	}
	return errors.Join(
		e.Add(bench.Result{
			What: what, Ours: got[0], Unit: "ms/GB", Peer: "the same into a pipe to cat", Theirs: got[1], Target: bench.Target{P50: 1e6 / outputRate},
		}),
		e.Add(bench.Result{What: "... memory that the worker's process grows by", Ours: grew[1:], Unit: "MiB", Target: bench.Target{P50: outputMemory}}),
	)
}

// step runs the plan and returns the time of its step, a gigabyte.
func (p printing) step(ctx context.Context, body []byte) (time.Duration, error) {
	records, err := p.s.finish(ctx, p.f, events.NewID(), body)
	if err != nil {
		return 0, err
	}
	var began time.Time
	for _, r := range records {
		switch r.Event.Kind() {
		case events.TypeStepStarted:
			began = r.Event.Time
		case events.TypeStepFinished:
			return p.each(r.Event.Time.Sub(began)), nil
		}
	}
	return 0, errors.New("a plan has ended without a step")
}

func (p printing) each(d time.Duration) time.Duration {
	return time.Duration(float64(d) / p.gigabytes)
}

// doctor measures the command that tries out what a machine can guarantee.
func doctor(ctx context.Context, e *bench.Env) error {
	const what, second = "warmfleet doctor", 1000
	program := filepath.Join(e.Bin, "warmfleet")
	if _, err := os.Stat(program); err != nil {
		return e.Skip(what, "cmd/warmfleet could not be built")
	}
	got, err := bench.InTurn(ctx, pick(e, 20, 2), func(ctx context.Context) (time.Duration, error) {
		const missing = 10 // the exit code where a required guarantee does not hold
		return bench.Time(func() error {
			err := exec.CommandContext(ctx, program, "doctor", "--state-dir", filepath.Join(e.Dir, "doctor")).Run()
			var exit *exec.ExitError
			if errors.As(err, &exit) && exit.ExitCode() == missing {
				return nil
			}
			return err
		})
	})
	if err != nil {
		return err
	}
	return e.Add(bench.Result{What: what, Ours: got[0], Target: bench.Target{P50: second}})
}
