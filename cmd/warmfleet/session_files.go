package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/pkg/api"
)

func (a *app) sessionExec() *cobra.Command {
	var req api.Exec
	var input bool
	c := &cobra.Command{
		Use: "exec ID [flags] -- CMD...", Short: "Run a command in a session; its output and exit code are this command's",
		Long: `Run a command in a session. Its stdout, stderr and exit code are this command's own; one that a signal ended gives 128 and
the signal's number, 127 means that it could not be started, and 255 that how it ended is not known. It goes on when this command is interrupted.`,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) < 2 {
				return usagef("session exec: name a session and a command, as in session exec ID -- ls")
			}
			req.Argv = args[1:]
			return a.onSession(c, args[0], func(ctx context.Context, h *handle) error {
				if input {
					var err error
					if req.Stdin, err = a.stdinText(ctx, "session exec: stdin"); err != nil {
						return err
					}
				}
				if req.Detach {
					d, err := h.ExecDetached(ctx, args[0], req)
					if err != nil {
						return err
					}
					return a.printer().one(d, fmt.Sprint(d.PID), func(w io.Writer) { fmt.Fprintf(w, "%d %s\n", d.PID, d.Log) })
				}
				end, err := h.Exec(ctx, args[0], req, a.stdout, a.stderr)
				if err != nil {
					return err
				}
				return execEnd(req, end)
			})
		},
	}
	f := c.Flags()
	f.BoolVarP(&input, "stdin", "i", false, "give the command this command's stdin, up to what fits into a message (about 700 KB)")
	f.BoolVar(&req.Detach, "detach", false, "let it go on until a rollback or the end of the session")
	f.StringVar(&req.Dir, "dir", "", "directory to run in, relative to the workspace")
	f.StringVar(&req.Timeout, "timeout", "", "end it after so long")
	f.StringArrayVarP(&req.Env, "env", "e", nil, "NAME=value for its environment; may be repeated")
	return c
}

// Exit codes where a command has none of its own.
const (
	execUnknown  = 255 // how it ended is not known; as of ssh
	execNotFound = 127 // it could not be started; as of shells
	// causeStart is the cause of such an end.
	causeStart = "start"
)

// execEnd makes the end of a command the end of this one.
func execEnd(req api.Exec, end api.ExecEnd) error {
	switch {
	case end.Cause == causeStart:
		return &coded{execNotFound, fmt.Errorf("session exec: %s", end.Error)}
	case end.Error != "":
		return &coded{execUnknown, fmt.Errorf("session exec %q: %s: %s", req.Argv[0], end.Cause, end.Error)}
	case end.ExitCode != nil && *end.ExitCode == 0:
		return nil
	case end.ExitCode != nil:
		return &coded{*end.ExitCode, nil}
	case end.Signal != "":
		return &coded{128 + int(unix.SignalNum("SIG"+end.Signal)), fmt.Errorf("session exec %q: ended by signal %s", req.Argv[0], end.Signal)}
	}
	return &coded{execUnknown, fmt.Errorf("session exec %q: ended by %s", req.Argv[0], end.Cause)}
}

func (a *app) sessionRead() *cobra.Command {
	var req api.SessionRead
	c := &cobra.Command{
		Use: "read ID PATH", Short: "Print a file of a session", Args: args(2, "a session id and a path"),
		RunE: func(c *cobra.Command, args []string) error {
			req.Path = args[1]
			return a.onSession(c, args[0], func(ctx context.Context, h *handle) error {
				return h.ReadFile(ctx, args[0], req, a.stdout)
			})
		},
	}
	c.Flags().Int64Var(&req.Offset, "offset", 0, "begin at this byte")
	c.Flags().Int64Var(&req.Limit, "limit", 0, "print at most so many bytes; 0 is all")
	return c
}

func (a *app) sessionWrite() *cobra.Command {
	var mode uint32
	c := &cobra.Command{
		Use: "write ID PATH", Short: "Replace a file of a session, whole, with stdin", Args: args(2, "a session id and a path"),
		RunE: func(c *cobra.Command, args []string) error {
			return a.onSession(c, args[0], func(ctx context.Context, h *handle) error {
				return h.WriteFile(ctx, args[0], args[1], mode, a.stdin)
			})
		},
	}
	c.Flags().Uint32Var(&mode, "mode", 0, "permission bits, as 0755; those of the present file, else 0644, if absent")
	return c
}

func (a *app) sessionList() *cobra.Command {
	return &cobra.Command{
		Use: "list ID [PATH]", Short: "List a directory of a session, its top where PATH is absent",
		Args: func(c *cobra.Command, got []string) error {
			if len(got) == 1 {
				return nil
			}
			return args(2, "a session id and a path")(c, got)
		},
		RunE: func(c *cobra.Command, args []string) error {
			dir := "."
			if len(args) == 2 {
				dir = args[1]
			}
			return a.onSession(c, args[0], func(ctx context.Context, h *handle) error {
				all, err := h.ListFiles(ctx, args[0], dir)
				if err != nil {
					return err
				}
				s := sheet{data: all, header: []string{"NAME", "TYPE", "SIZE", "MODE"}}
				for _, e := range all {
					s.rows = append(s.rows, []any{fmt.Sprintf("%q", e.Name), e.Type, e.Size, e.Mode})
				}
				return a.printer().list(s)
			})
		},
	}
}
