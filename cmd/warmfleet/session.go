package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/warmfleet/warmfleet/internal/fleet"
	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/client"
	"github.com/warmfleet/warmfleet/pkg/plan"
	"github.com/warmfleet/warmfleet/pkg/session"
)

func (a *app) sessionCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "session", Short: "Work in a sandbox: run commands, read and write files, checkpoint, resume elsewhere",
		Example: `  id=$(warmfleet session start --pool api --user "$USER" --email me@example.com -o name)
  warmfleet session exec $id -- go test ./...
  warmfleet session read $id go.mod
  cp=$(warmfleet session end $id -o name); warmfleet session start --checkpoint $cp`,
	}
	c.AddCommand(a.sessionStart(), a.sessionResume(), a.sessionLs(), a.sessionShow(), a.sessionExec(), a.sessionRead(), a.sessionWrite(),
		a.sessionList(), a.sessionCheckpoint(), a.sessionRollback(), a.sessionFork(), a.sessionEnd())
	return c
}

func (a *app) sessionStart() *cobra.Command {
	var s sessionAsk
	c := &cobra.Command{
		Use: "start (--pool P | --path DIR | --repo URL | --checkpoint ID)", Short: "Start a session", Args: args(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			if given := slices.DeleteFunc([]string{s.Pool, s.Path, s.Repo, s.Checkpoint}, func(v string) bool { return v == "" }); len(given) != 1 {
				return usagef("session start: takes one of --pool, --path, --repo and --checkpoint, not %d: see %s --help", len(given), c.CommandPath())
			}
			if s.Path != "" {
				abs, err := filepath.Abs(s.Path)
				if err == nil {
					abs, err = filepath.EvalSymlinks(abs)
				}
				if err != nil {
					return usagef("--path %q: %w", s.Path, err)
				}
				if s.Path = abs; s.Host == "" {
					s.Host = fleet.HostID("")
				}
			}
			return a.started(c.Context(), s)
		},
	}
	f := c.Flags()
	f.StringVar(&s.Pool, "pool", "", "start in a sandbox of this pool, warm where there is one")
	f.StringVar(&s.Path, "path", "", "start in a copy of this directory")
	f.StringVar(&s.Host, "host", "", "id of the host that --path is on; this one if absent")
	f.StringVar(&s.Repo, "repo", "", "start in a clone of this repository")
	f.StringVar(&s.Ref, "ref", "", "branch, tag or commit of --repo; the remote's default branch if absent")
	f.StringVar(&s.Checkpoint, "checkpoint", "", "resume from this checkpoint, with its files and identity")
	f.StringVar(&s.ID, "id", "", "id of the new session; the same again is the same session")
	startFlags(c, &s)
	return c
}

// sessionAsk is what the flags of a start say.
type sessionAsk struct {
	api.SessionStart
	network []string
}

func startFlags(c *cobra.Command, s *sessionAsk) {
	f := c.Flags()
	f.StringVar(&s.User, "user", "", "name of who commits in it")
	f.StringVar(&s.Email, "email", "", "address of who commits in it")
	f.StringVar(&s.IdleTimeout, "idle-timeout", "", "end it, with a checkpoint, when it was not used for so long (default 30m)")
	f.StringVar(&s.Timeout, "timeout", "", "end it after so long, however much it is used (default 4h)")
	f.StringSliceVar(&s.network, "network", nil, "none, allow, or hosts that it may reach: HOST or HOST:PORT, with commas between or given again (default the pool's, else none)")
}

func (a *app) sessionResume() *cobra.Command {
	var s sessionAsk
	c := &cobra.Command{
		Use: "resume ID", Short: "Start a session from the last checkpoint of one that has ended or was lost", Args: args(1, "a session id"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := idArg("session", args[0]); err != nil {
				return err
			}
			s.Session = args[0]
			return a.started(c.Context(), s)
		},
	}
	startFlags(c, &s)
	return c
}

func (a *app) started(ctx context.Context, ask sessionAsk) error {
	switch words := slices.DeleteFunc(slices.Clone(ask.network), func(v string) bool { return v != plan.NetworkNone && v != plan.NetworkAllow }); {
	case len(ask.network) == 1 && len(words) == 1:
		ask.Network.Mode = words[0]
	case len(words) > 0:
		return usagef("--network %q: %s stands alone: it goes with no other value", ask.network, words[0])
	default:
		ask.Network.Hosts = ask.network
	}
	return a.with(ctx, func(ctx context.Context, h *handle) error {
		s, err := h.StartSession(ctx, ask.SessionStart)
		if err != nil && ask.Session != "" {
			return h.explain(ctx, err, "resume", "session", ask.Session)
		}
		if err != nil {
			return err
		}
		return a.printSession(s)
	})
}

func (a *app) printSession(s api.Session) error {
	return a.printer().one(s, s.ID, func(w io.Writer) {
		fmt.Fprintf(w, "session %s on %s: %s, from %s\n", s.ID, s.Worker, s.State, s.Source)
		if s.Checkpoint != "" {
			fmt.Fprintf(w, "resumable from checkpoint %s%s\n", s.Checkpoint, map[bool]string{true: " (fuzzy)"}[s.Fuzzy])
		}
		for _, line := range append(s.Notes, s.Error) {
			if line != "" {
				fmt.Fprintln(w, oneLine(line))
			}
		}
	})
}

func (a *app) sessionLs() *cobra.Command {
	return &cobra.Command{
		Use: "ls", Short: "List all sessions, oldest first; for the files of one, see session list",
		Args: func(c *cobra.Command, got []string) error {
			if len(got) > 0 {
				return usagef("session ls: lists sessions, and takes no arguments: to list files of a session, use %s list ID [PATH]", c.Parent().CommandPath())
			}
			return nil
		},
		RunE: func(c *cobra.Command, _ []string) error {
			return a.with(c.Context(), func(ctx context.Context, h *handle) error {
				all, err := h.Sessions(ctx)
				if err != nil {
					return err
				}
				s := sheet{data: all, header: []string{"ID", "STATE", "WORKER", "SOURCE", "AGE", "CHECKPOINT", "USER"}, wide: 2}
				for _, x := range all {
					s.rows = append(s.rows, []any{x.ID, x.State, x.Worker, x.Source, age(x.CreatedAt), x.Checkpoint, oneLine(x.User)})
				}
				return a.printer().list(s)
			})
		},
	}
}

// onSession is a command of one session.
func (a *app) onSession(c *cobra.Command, id string, do func(context.Context, *handle) error) error {
	if err := idArg("session", id); err != nil {
		return err
	}
	return a.with(c.Context(), func(ctx context.Context, h *handle) error { return h.explainSession(ctx, do(ctx, h), id) })
}

// explainSession says why nobody serves a session.
func (h *handle) explainSession(ctx context.Context, err error, id string) error {
	if !errors.Is(err, client.ErrNoSession) {
		return err
	}
	s, failed := h.Session(ctx, id)
	if failed != nil {
		return h.explain(ctx, failed, "use", "session", id)
	}
	why := "has " + s.State // ended, expired, failed
	switch session.State(s.State) {
	case session.Starting:
		return &coded{exitNotFound, fmt.Errorf("session %s: has not started yet: it is there when warmfleet session show %s says %s", id, id, session.Active)}
	case session.Active:
		return &coded{exitNotFound, fmt.Errorf("session %s: its worker %s does not answer: try again, or see warmfleet worker ls", id, s.Worker)}
	case session.Lost:
		why = fmt.Sprintf("is lost: its worker %s is gone", s.Worker)
	}
	if s.Checkpoint == "" {
		return &coded{exitNotFound, fmt.Errorf("session %s: %s, and has no checkpoint: start another", id, why)}
	}
	return &coded{exitNotFound, fmt.Errorf("session %s: %s: go on from its last checkpoint with warmfleet session resume %s", id, why, id)}
}

func (a *app) sessionShow() *cobra.Command {
	return &cobra.Command{
		Use: "show ID", Aliases: []string{"get", "info"}, Short: "Show a session", Args: args(1, "a session id"),
		RunE: func(c *cobra.Command, args []string) error {
			return a.onSession(c, args[0], func(ctx context.Context, h *handle) error {
				s, err := h.Session(ctx, args[0])
				if err != nil {
					return h.explain(ctx, err, "show", "session", args[0])
				}
				return a.printSession(s)
			})
		},
	}
}

func (a *app) printCheckpoint(cp api.SessionCheckpoint, err error) error {
	if err != nil {
		return err
	}
	if cp.Fuzzy {
		fmt.Fprintf(a.stderr, "checkpoint %s is fuzzy: processes ran when it was taken: files may be half written\n", cp.Checkpoint)
	}
	return a.printer().one(cp, cp.Checkpoint, func(w io.Writer) { fmt.Fprintln(w, cp.Checkpoint) })
}

func (a *app) sessionCheckpoint() *cobra.Command {
	var wait bool
	c := &cobra.Command{
		Use: "checkpoint ID", Short: "Take a checkpoint, stored when it returns", Args: args(1, "a session id"),
		Long: `Take a checkpoint, and print its id when it is stored. Commands that run, detached or not, are stopped while files are copied and
go on; the checkpoint is fuzzy then: what they write may be half there. With --wait it is taken after the commands that run.`,
		RunE: func(c *cobra.Command, args []string) error {
			return a.onSession(c, args[0], func(ctx context.Context, h *handle) error {
				if wait {
					return a.printCheckpoint(h.CheckpointIdleSession(ctx, args[0]))
				}
				return a.printCheckpoint(h.CheckpointSession(ctx, args[0]))
			})
		},
	}
	c.Flags().BoolVar(&wait, "wait", false, "wait for commands that run; detached ones are not waited for")
	return c
}

func (a *app) sessionRollback() *cobra.Command {
	return &cobra.Command{
		Use: "rollback ID CHECKPOINT", Short: "Bring a session back to a checkpoint of its lineage", Args: args(2, "a session id and a checkpoint id"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := idArg("checkpoint", args[1]); err != nil {
				return err
			}
			return a.onSession(c, args[0], func(ctx context.Context, h *handle) error {
				cp, err := h.RollbackSession(ctx, args[0], args[1])
				if err != nil && !errors.Is(err, client.ErrNoSession) {
					return h.explain(ctx, err, "roll back to", "checkpoint", args[1])
				}
				return a.printCheckpoint(cp, err)
			})
		},
	}
}

func (a *app) sessionFork() *cobra.Command {
	return &cobra.Command{
		Use: "fork ID", Short: "Start another session from the present state of one", Args: args(1, "a session id"),
		RunE: func(c *cobra.Command, args []string) error {
			return a.onSession(c, args[0], func(ctx context.Context, h *handle) error {
				s, err := h.ForkSession(ctx, args[0])
				if err != nil {
					return err
				}
				return a.printSession(s)
			})
		},
	}
}

func (a *app) sessionEnd() *cobra.Command {
	return &cobra.Command{
		Use: "end ID", Short: "End a session and print the checkpoint to resume from", Args: args(1, "a session id"),
		RunE: func(c *cobra.Command, args []string) error {
			return a.onSession(c, args[0], func(ctx context.Context, h *handle) error {
				return a.printCheckpoint(h.EndSession(ctx, args[0]))
			})
		},
	}
}
