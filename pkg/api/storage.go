package api

// Problem is one thing that is wrong with what is stored.
type Problem struct {
	// Kind is missing, corrupt, differs (from the record) or record (which can't be read).
	Kind string `json:"kind"`
	// Object is the stored object, "" if the record is what is wrong.
	Object string `json:"object"`
	// Checkpoints need it.
	Checkpoints []string `json:"checkpoints"`
	What        string   `json:"what"`
}

// Verified is what a verification found.
type Verified struct {
	Checkpoints int `json:"checkpoints"`
	// Objects are those that records name; Read of them were read whole, ReadBytes of stored bytes.
	Objects   int       `json:"objects"`
	Read      int       `json:"read"`
	ReadBytes int64     `json:"read_bytes"`
	Problems  []Problem `json:"problems"`
	// Orphans are objects that no record names: of uploads that go on, or garbage that waits for its
	// collection. They are no problem.
	Orphans     []string `json:"orphans"`
	OrphanBytes int64    `json:"orphan_bytes"`
}

// Dropped is a checkpoint that a collection removed.
type Dropped struct {
	ID   string `json:"id"`
	Plan string `json:"plan"`
	// Why is "expired", "budget", or "not whole" for one whose writer was killed.
	Why string `json:"why"`
}

// Collected is what a collection of garbage did. Sizes are bytes in the store.
type Collected struct {
	DryRun      bool      `json:"dry_run"`
	Checkpoints []Dropped `json:"checkpoints"`
	// Objects went: layers and differences that no checkpoint names.
	Objects int   `json:"objects"`
	Bytes   int64 `json:"bytes"`
	// Leavings are interrupted uploads and remains of removals that went beside them.
	Leavings int `json:"leavings"`
	// Marked objects go once the grace has passed, if nobody uses them again.
	Marked      int   `json:"marked"`
	MarkedBytes int64 `json:"marked_bytes"`
	// Kept checkpoints need KeptBytes, OverBudget more than they may.
	Kept       int   `json:"kept"`
	KeptBytes  int64 `json:"kept_bytes"`
	OverBudget int64 `json:"over_budget"`
	// Foreign objects have names of another kind and are left alone.
	Foreign int `json:"foreign"`
}
