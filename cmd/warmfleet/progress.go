package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/warmfleet/warmfleet/internal/termsafe"
	"github.com/warmfleet/warmfleet/pkg/events"
)

// redrawEvery is how often the line of a running step is written anew.
const redrawEvery = 100 * time.Millisecond

// spinner is the frames before the step that runs.
const spinner = `|/-\`

// progress shows what becomes of one plan: a line for each thing that happened and the steps'
// output between them, never torn apart. On a terminal the step that runs has a live line
// below all else, which its result replaces.
type progress struct {
	mu    sync.Mutex
	w     io.Writer // takes what others wrote
	own   io.Writer // takes what moves the cursor
	live  bool      // rewrite the line of a running step
	color bool
	fresh bool // the stream stands at the start of a line
	drawn bool // that line is the live one

	steps   []string       // ids, in order
	running int            // index of the step that runs, -1 if none does
	since   time.Time      // when it began
	frame   int            // of the spinner
	seq     uint64         // of the last chunk shown
	early   []events.Chunk // output of steps whose start was not shown yet
}

// newProgress shows progress on a stream, with colours and a live line where that is a
// terminal that can do so.
func newProgress(w io.Writer) *progress {
	_, person := w.(*tty)
	live := person && os.Getenv("TERM") != "dumb"
	return &progress{w: w, own: exact(w), live: live, color: live && os.Getenv("NO_COLOR") == "", fresh: true, running: -1}
}

// animate redraws the live line until done is closed.
func (p *progress) animate(done <-chan struct{}) {
	if !p.live {
		return
	}
	tick := time.NewTicker(redrawEvery)
	defer tick.Stop()
	for {
		select {
		case <-done:
			p.mu.Lock()
			p.erase()
			p.mu.Unlock()
			return
		case <-tick.C:
			p.mu.Lock()
			p.frame++
			p.draw()
			p.mu.Unlock()
		}
	}
}

// draw writes the live line, if a step runs and its own output left the line to us.
func (p *progress) draw() {
	if !p.live || p.running < 0 || !p.fresh && !p.drawn {
		return
	}
	name := ""
	if p.running < len(p.steps) {
		name = p.steps[p.running]
	}
	fmt.Fprintf(p.own, "\r\033[K%c step %s (%d/%d) %s", spinner[p.frame%len(spinner)], termsafe.Line(name), p.running+1, len(p.steps), time.Since(p.since).Round(redrawEvery))
	p.fresh, p.drawn = false, true
}

func (p *progress) erase() {
	if p.drawn {
		fmt.Fprint(p.own, "\r\033[K")
		p.fresh, p.drawn = true, false
	}
}

// line writes one line, whatever the texts in it are.
func (p *progress) line(format string, args ...any) {
	p.put(p.w, termsafe.Line(fmt.Sprintf(format, args...)))
}

func (p *progress) put(w io.Writer, line string) {
	p.erase()
	if !p.fresh {
		fmt.Fprintln(p.w)
	}
	fmt.Fprintln(w, line)
	p.fresh = true
}

// chunk shows output once its step is known to have begun, each piece once.
func (p *progress) chunk(c events.Chunk) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case c.Seq <= p.seq:
	case c.Step == p.running:
		p.write(c)
	case !slices.ContainsFunc(p.early, func(e events.Chunk) bool { return e.Seq == c.Seq }):
		p.early = append(p.early, c)
	}
}

func (p *progress) write(c events.Chunk) {
	p.erase()
	if c.Dropped > 0 {
		p.line("[%d bytes left out]", c.Dropped)
	}
	if n := len(c.Data); n > 0 {
		p.w.Write(c.Data)
		p.fresh = c.Data[n-1] == '\n'
	}
	p.seq = c.Seq
}

// rest shows output that was stored but did not come by itself, in order.
func (p *progress) rest(chunks []events.Chunk) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range chunks {
		if c.Seq > p.seq {
			p.write(c)
		}
	}
}

// shown is the place of the last output that was shown.
func (p *progress) shown() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seq
}

// start makes a step the running one and shows what it printed already.
func (p *progress) start(d events.Data) {
	if d.StepIndex == nil {
		return
	}
	p.running, p.since = *d.StepIndex, time.Now()
	for len(p.steps) <= p.running {
		p.steps = append(p.steps, d.Step)
	}
	if !p.live {
		p.line("step %s (%d/%d) ...", d.Step, p.running+1, len(p.steps))
	}
	var later []events.Chunk
	for _, c := range p.early {
		switch {
		case c.Seq <= p.seq:
		case c.Step == p.running:
			p.write(c)
		default:
			later = append(later, c)
		}
	}
	p.early = later
	p.draw()
}

// event shows one event, where people want to know of it.
func (p *progress) event(e events.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	d := e.Data
	switch e.Kind() {
	case events.TypeAccepted:
		p.steps = d.Steps
		p.line("plan %s accepted", e.Subject)
	case events.TypeWaiting:
		p.line("waiting: %s", d.Reason)
	case events.TypeClaimed:
		p.claimed(d)
	case events.TypeStepStarted:
		p.start(d)
	case events.TypeStepFinished:
		p.running = -1
		p.result(d)
		if d.State == events.StepSucceeded { // else its message says so
			for _, line := range networkLines(d.Network, d.NetworkMore) {
				p.line("  %s", line)
			}
		}
	case events.TypeCheckpointed:
		if d.Checkpoint != nil {
			p.line("checkpoint %s (%s, %s stored)", d.Checkpoint.ID, d.Checkpoint.Phase, size(d.Checkpoint.SizeBytes))
		}
	case events.TypeRolledBack:
		p.line("rolled back: %s", d.Reason)
	case events.TypeInterrupted, events.TypeRetrying:
		p.running = -1
		p.line("interrupted: %s", d.Reason)
	case events.TypeCancelRequested:
		p.line("cancelling")
	}
}

func (p *progress) claimed(d events.Data) {
	p.running = -1
	how := "running"
	if d.Plan != nil && d.Plan.Executed {
		how = "applying"
	}
	p.line("%s on %s (attempt %d, from %s, isolation %s)", how, d.Worker, max(d.Attempt, 1), d.Source, d.Isolation)
	for _, n := range d.Notes {
		p.line("  %s", n)
	}
}

// result writes the one line that stays of a step.
func (p *progress) result(d events.Data) {
	mark, how := "ok", ""
	paint := text.FgGreen
	if d.State != events.StepSucceeded {
		mark, how, paint = "failed", ": "+d.Error, text.FgRed
	}
	if p.color {
		mark = paint.EscapeSeq() + mark + text.Reset.EscapeSeq()
	}
	p.put(p.own, fmt.Sprintf("step %s %s%s%s", termsafe.Line(d.Step), mark, termsafe.Line(how), took(d.DurationMS)))
}

// end shows how the plan ended, or that it waits for approval.
func (p *progress) end(e events.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running = -1
	f := e.Data.Plan
	if f == nil {
		return
	}
	switch {
	case f.State == events.StateAwaitingApproval:
		p.line("plan %s awaits approval", e.Subject)
	case e.Data.Error != "":
		p.line("plan %s %s: %s", e.Subject, f.State, e.Data.Error)
	case e.Data.Reason != "":
		p.line("plan %s %s (%s)", e.Subject, f.State, e.Data.Reason)
	default:
		p.line("plan %s %s", e.Subject, f.State)
	}
	switch e.Data.RolledBack {
	case "sandbox":
		p.line("rolled back: the original was not touched")
	case "original":
		p.line("rolled back: the original is as it was before the plan")
	}
	for _, c := range e.Data.Conflicts {
		p.line("  conflict: %s: %s", quoted(c.Path), c.Kind)
	}
}

// quoted is a path as it is, or in quotes where a terminal would do more than show it.
func quoted(path string) string {
	if q := fmt.Sprintf("%q", path); q != `"`+path+`"` || strings.ContainsAny(path, " :") {
		return q
	}
	return path
}

func took(ms *int64) string {
	if ms == nil {
		return ""
	}
	d := time.Duration(*ms) * time.Millisecond
	if d > 10*time.Second {
		d = d.Round(100 * time.Millisecond)
	}
	return fmt.Sprintf(" (%s)", d)
}

// size is a number of bytes for people.
func size(n int64) string {
	switch {
	case n < 10_000:
		return fmt.Sprintf("%d B", n)
	case n < 10_000_000:
		return fmt.Sprintf("%d kB", n/1000)
	default:
		return fmt.Sprintf("%d MB", n/1_000_000)
	}
}
