// Package plan is the plan format, version 1: what a plan may say, what it means when it says
// nothing, and every reason to refuse it.
//
// People write YAML, services send JSON; both have the same shape and go through the same
// decoder, so an error names the same path and its line and column in either. A plan is read
// by ParseYAML or ParseJSON, completed by Defaults and Bind, and travels as Canonical.
//
// The package is pure: it must not know NATS, files on disk, processes or sandboxes. Whether
// a path exists, who may use it and how a step runs is the business of others.
package plan

// Version is the only version of the format that this package reads.
const Version = 1

// Limits of the format itself. A plan travels in one NATS message and is kept in one event.
const (
	// BodyLimit is the most bytes of a plan as JSON; submissions above it are refused.
	BodyLimit = 512 << 10
	// SourceLimit is the most bytes of a plan file; comments make YAML longer than its JSON.
	SourceLimit = 2 << 20
	// MaxSteps is the most steps of one plan.
	MaxSteps = 2000
	// MaxEnvBytes is the most bytes of NAME=value: Linux's MAX_ARG_STRLEN less the closing NUL.
	MaxEnvBytes = 128<<10 - 1
)

// Strategy says what a step writes to.
type Strategy string

// The strategies. InPlace works on the original itself, the others on a copy of it.
const (
	InPlace     Strategy = "none"
	CopyOnWrite Strategy = "copy_on_write"
	GitWorktree Strategy = "git_worktree"
)

// Base says what the sandbox of a path starts from.
type Base string

// The bases. Live is the directory itself as the lowest layer, which others may go on changing.
const (
	BaseImage Base = "image"
	BaseLive  Base = "live"
)

// Class orders waiting plans.
type Class string

// The classes; High is started first.
const (
	High   Class = "high"
	Normal Class = "normal"
	Low    Class = "low"
)

// Apply says what happens to the result of a plan that succeeded.
type Apply string

// The ways to apply. Manual waits for an approval.
const (
	ApplyAuto   Apply = "auto"
	ApplyManual Apply = "manual"
	ApplyNever  Apply = "never"
)

// OnFailure says what becomes of the tree of a plan that failed.
type OnFailure string

// Rollback returns to the pre_execute checkpoint; Keep stores the failed tree first.
const (
	Rollback OnFailure = "rollback"
	Keep     OnFailure = "keep"
)

// Isolation says whether a plan may run where a required guarantee does not hold.
type Isolation string

// Absent means what the worker says; the stricter of plan and worker counts.
const (
	IsolationRequired  Isolation = "required"
	IsolationPreferred Isolation = "preferred"
	// IsolationStrong is required, and each command on a kernel of its own, gVisor's.
	IsolationStrong Isolation = "strong"
)

// Plan is a plan as it is written and as it is published. Absent values are zero; Defaults
// fills those that have a default. Fields may be added within a version, none renamed.
type Plan struct {
	// Version of the format, always 1.
	Version int `json:"version"`
	// Name is for people; one line.
	Name string `json:"name,omitempty"`
	// Resource is what the plan works on. It may be absent with a pool.
	Resource *Resource `json:"resource,omitempty"`
	// Pool is the pool whose warm sandboxes to use.
	Pool string `json:"pool,omitempty"`
	// Strategy says what steps write to; default copy_on_write.
	Strategy Strategy `json:"strategy,omitempty"`
	// Base says what a sandbox with copy_on_write starts from: an image of the path as it is then, or the path
	// itself (live), where what others change meanwhile is told and, where the plan changes the same, a conflict; default
	// image.
	Base Base `json:"base,omitempty"`
	// Class orders waiting plans; default normal.
	Class Class `json:"class,omitempty"`
	// Key serialises plans that name the same one; default the resource.
	Key string `json:"key,omitempty"`
	// Timeout bounds the execution, not queue and approval; default 1h.
	Timeout Duration `json:"timeout,omitempty"`
	// Limits bound what the sandbox may use; an absent limit means none.
	Limits *Limits `json:"limits,omitempty"`
	// Network is none, allow, or a list of hosts; default none.
	Network *Network `json:"network,omitempty"`
	// Isolation can only tighten what the worker says.
	Isolation Isolation `json:"isolation,omitempty"`
	// Env is the environment of every step.
	Env map[string]string `json:"env,omitempty"`
	// Secrets are names; values come from the worker's provider.
	Secrets []string `json:"secrets,omitempty"`
	// Identity is the author and committer of what steps commit.
	Identity *Identity `json:"identity,omitempty"`
	// Inputs arrive as WARMFLEET_INPUT_<NAME>; nothing is substituted into text.
	Inputs map[string]Input `json:"inputs,omitempty"`
	// StepDefaults hold for steps that say nothing else.
	StepDefaults *StepDefaults `json:"defaults,omitempty"`
	// Steps run in order.
	Steps []Step `json:"steps"`
	// OnFailure says what becomes of a failed tree; default rollback.
	OnFailure OnFailure `json:"on_failure,omitempty"`
	// Apply says what happens to the result; default manual.
	Apply Apply `json:"apply,omitempty"`
	// AllowSpecial lets new setuid bits, devices and capabilities be applied.
	AllowSpecial bool `json:"allow_special,omitempty"`
	// MaxAttempts bounds the claims of this plan when workers are lost; default 3.
	MaxAttempts int `json:"max_attempts,omitempty"`
	// ExpiresIn is how long the plan lives after it was accepted; default 168h, at most 480h.
	ExpiresIn Duration `json:"expires_in,omitempty"`
	// Commit makes the result a commit; without it files are applied.
	Commit *Commit `json:"commit,omitempty"`
}

// Resource is what a plan works on: exactly one of Path and Repo.
type Resource struct {
	// Path is a directory. In a file it may be relative; published it is absolute.
	Path string `json:"path,omitempty"`
	// Host is the id of the host that Path is on.
	Host string `json:"host,omitempty"`
	// Repo is a git URL without credentials.
	Repo string `json:"repo,omitempty"`
	// Ref is a branch, tag or commit of Repo; default the remote's default branch.
	Ref string `json:"ref,omitempty"`
}

// Limits bound what a sandbox may use. Zero is no limit.
type Limits struct {
	// MemoryMB is in MiB.
	MemoryMB int `json:"memory_mb,omitempty"`
	// CPUCores may be a fraction of a core.
	CPUCores float64 `json:"cpu_cores,omitempty"`
	// DiskGB is in GiB; it may be a fraction.
	DiskGB float64 `json:"disk_gb,omitempty"`
	// PIDs is the most processes and threads at once.
	PIDs int `json:"pids,omitempty"`
}

// Identity is who commits. Both fields are stored by git exactly as written.
type Identity struct {
	Name  string `json:"name"`
	Email string `json:"email"`
}

// Input is a value that the submitter gives.
type Input struct {
	// Required inputs without a value refuse the plan.
	Required bool `json:"required,omitempty"`
	// Default is used when no value was given.
	Default *string `json:"default,omitempty"`
	// Value is what was given; Bind sets it.
	Value *string `json:"value,omitempty"`
}

// StepDefaults hold for every step that says nothing else.
type StepDefaults struct {
	// WorkingDir is relative to the workspace; default the workspace.
	WorkingDir string `json:"working_dir,omitempty"`
	// Shell is the command that gets the script as its last argument or as a file.
	Shell []string `json:"shell,omitempty"`
	// Timeout bounds one try of a step; default 10m.
	Timeout Duration `json:"timeout,omitempty"`
}

// Step does one thing: exactly one of Run, WriteFile, Edit and Patch is set.
type Step struct {
	// ID names the step in events and on the command line; default step-1, step-2, ...
	ID string `json:"id,omitempty"`
	// Run is a shell script.
	Run       string     `json:"run,omitempty"`
	WriteFile *WriteFile `json:"write_file,omitempty"`
	Edit      *Edit      `json:"edit,omitempty"`
	Patch     *Patch     `json:"patch,omitempty"`
	// Env is added to the plan's and wins over it.
	Env map[string]string `json:"env,omitempty"`
	// WorkingDir is where Run starts, relative to the workspace.
	WorkingDir string `json:"working_dir,omitempty"`
	// Shell runs this step's script instead of the plan's shell.
	Shell []string `json:"shell,omitempty"`
	// Timeout bounds one try.
	Timeout Duration `json:"timeout,omitempty"`
	Retry   *Retry   `json:"retry,omitempty"`
	// ContinueOnError goes on to the next step although this one failed.
	ContinueOnError bool `json:"continue_on_error,omitempty"`
	// Checkpoint takes a step checkpoint after this step.
	Checkpoint bool `json:"checkpoint,omitempty"`
	// Outputs are the names that the step writes to $WARMFLEET_OUTPUT.
	Outputs   []string   `json:"outputs,omitempty"`
	Artifacts []Artifact `json:"artifacts,omitempty"`
}

// WriteFile writes one file; missing directories are made.
type WriteFile struct {
	// Path is relative to the workspace, whatever the working directory.
	Path    string  `json:"path"`
	Content *string `json:"content"`
	// Mode is octal, as in "0644"; absent keeps the mode of a file that is there.
	Mode string `json:"mode,omitempty"`
	// ExpectSHA256 is the hex digest the file must have before it is replaced.
	ExpectSHA256 string `json:"expect_sha256,omitempty"`
}

// Edit replaces text in one file; Old must occur exactly Count times.
type Edit struct {
	// Path is relative to the workspace, whatever the working directory.
	Path string  `json:"path"`
	Old  string  `json:"old"`
	New  *string `json:"new"`
	// Count is how often Old occurs; default 1.
	Count int `json:"count,omitempty"`
}

// Patch applies a unified or git diff, all of it or nothing; see package patch.
type Patch struct {
	// Strip is how many leading path elements to drop; default 1.
	Strip *int `json:"strip,omitempty"`
	// Diff is relative to the workspace, whatever the working directory.
	Diff string `json:"diff"`
}

// Retry says which failures of a step are tried again, each from the tree before the step.
type Retry struct {
	// Limit is the most further tries after the first.
	Limit int `json:"limit"`
	// On lists exit, exit:N, signal, signal:NAME, timeout, oom, disk, pids, start, lost;
	// absent means all of them.
	On []string `json:"on,omitempty"`
	// Backoff is the pause before the second try; it doubles for each further one, up to 5m.
	Backoff Duration `json:"backoff,omitempty"`
}

// Artifact is a file kept beside the plan.
type Artifact struct {
	// Path is relative to the workspace.
	Path string `json:"path"`
	Name string `json:"name,omitempty"`
	// If is always, success or failure; default success.
	If string `json:"if,omitempty"`
}

// Commit makes the result a commit of a git repository.
type Commit struct {
	Message string `json:"message"`
	// Branch is where the commit goes; default the branch the plan started from.
	Branch string `json:"branch,omitempty"`
}
