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
	var input, raw bool
	c := &cobra.Command{
		Use: "exec ID [flags] -- CMD...", Short: "Run a command in a session; its output and exit code are this command's",
		Long: `Run a command in a session. Its stdout, stderr and exit code are this command's own; one that a signal ended gives 128 and
the signal's number, 127 means that it could not be started, and 255 that how it ended is not known. It goes on when this command is interrupted.

Commands of a session run one at a time, in the order in which they came: give a server --detach, so that it holds up no other.
On a terminal everything in the output that would act on it is spelled out (^[ is the escape character), unless --raw is given.`,
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
				end, err := h.Exec(ctx, args[0], req, a.shown(a.stdout, raw), a.shown(a.stderr, raw))
				if err != nil {
					return err
				}
				if _, looked := a.stderr.(*tty); looked { // elsewhere it is the command's own
					for _, line := range networkLines(end.Network, end.NetworkMore) {
						a.note("%s", line)
					}
				}
				return execEnd(req, end)
			})
		},
	}
	f := c.Flags()
	f.BoolVarP(&input, "stdin", "i", false, "give the command this command's stdin, up to what fits into a message (about 700 KB)")
	f.BoolVar(&req.Detach, "detach", false, "let it go on until a rollback or the end of the session")
	f.BoolVar(&raw, "raw", false, "the exact bytes on a terminal too: what the command prints can then drive it")
	f.StringVar(&req.Dir, "dir", "", "directory to run in, relative to the workspace")
	f.StringVar(&req.Timeout, "timeout", "", "end it after so long")
	f.StringArrayVarP(&req.Env, "env", "e", nil, "NAME=value for its environment; may be repeated")
	c.SetFlagErrorFunc(dashes("put -- before the command, as in session exec ID -- ls -l"))
	return c
}

// shown is where output goes that may hold anything.
func (a *app) shown(w io.Writer, raw bool) io.Writer {
	if raw {
		return exact(w)
	}
	return w
}

// dashes says of a flag that there is none of what else may have been meant.
func dashes(hint string) func(*cobra.Command, error) error {
	return func(c *cobra.Command, err error) error {
		return usagef("%s%w: %s; see %s --help", inCommand(c), err, hint, c.CommandPath())
	}
}

// dashPath is a hint for commands that take a path.
const dashPath = "a path that begins with - goes behind --"

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
	var raw bool
	c := &cobra.Command{
		Use: "read ID PATH", Short: "Print a file of a session", Args: args(2, "a session id and a path"),
		Long: `Print a file of a session, byte for byte. On a terminal everything that would act on it is spelled out, unless --raw is given.
PATH is relative to the workspace, or begins with /workspace.`,
		RunE: func(c *cobra.Command, args []string) error {
			req.Path = args[1]
			return a.onSession(c, args[0], func(ctx context.Context, h *handle) error {
				return h.ReadFile(ctx, args[0], req, a.shown(a.stdout, raw))
			})
		},
	}
	c.Flags().Int64Var(&req.Offset, "offset", 0, "begin at this byte")
	c.Flags().Int64Var(&req.Limit, "limit", 0, "print at most so many bytes; 0 is all")
	c.Flags().BoolVar(&raw, "raw", false, "the exact bytes on a terminal too: what the file holds can then drive it")
	c.SetFlagErrorFunc(dashes(dashPath))
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
	c.SetFlagErrorFunc(dashes(dashPath))
	c.Flags().Uint32Var(&mode, "mode", 0, "permission bits, as 0755; those of the present file, else 0644, if absent")
	return c
}

func (a *app) sessionList() *cobra.Command {
	c := &cobra.Command{
		Use: "list ID [PATH]", Aliases: []string{"files"}, Short: "List the files of a session, those in PATH or at its top; for all sessions, see session ls",
		Args: func(c *cobra.Command, got []string) error {
			if len(got) == 0 || len(got) > 2 {
				return usagef("session list: lists files of a session, as in %s ID [PATH]: to list sessions, use %s ls", c.CommandPath(), c.Parent().CommandPath())
			}
			return nil
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
					name, err := api.OfText(e.Name)
					if err != nil {
						return err
					}
					s.rows = append(s.rows, []any{fmt.Sprintf("%q", name), e.Type, e.Size, e.Mode})
				}
				return a.printer().list(s)
			})
		},
	}
	c.SetFlagErrorFunc(dashes(dashPath))
	return c
}
