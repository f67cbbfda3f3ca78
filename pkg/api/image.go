package api

import "time"

// Image is an image as people see it.
type Image struct {
	ID   string `json:"id"`
	Pool string `json:"pool"`
	// Latest tells that its pool starts from it.
	Latest     bool      `json:"latest"`
	Repo       string    `json:"repo"`
	Ref        string    `json:"ref,omitempty"`
	Branch     string    `json:"branch,omitempty"`
	Commit     string    `json:"commit"`
	Checkpoint string    `json:"checkpoint"`
	Parent     string    `json:"parent,omitempty"`
	Recipe     string    `json:"recipe"`
	Worker     string    `json:"worker"`
	BuiltAt    time.Time `json:"built_at"`
	TookMS     int64     `json:"took_ms"`
	Layers     int       `json:"layers"`
	SizeBytes  int64     `json:"size_bytes"`
	Warnings   []string  `json:"warnings,omitempty"`
}

// ImageFilter selects images; empty fields select all.
type ImageFilter struct {
	Pool string `json:"pool,omitempty"`
}

// ImageBuild asks for a build of a pool's image, or with Explain what a build would do and why.
type ImageBuild struct {
	Pool    string `json:"pool"`
	Scratch bool   `json:"scratch,omitempty"`
	Explain bool   `json:"explain,omitempty"`
}

// Building is a build that was asked for.
type Building struct {
	// ID is the image's, if something has to be built.
	ID   string `json:"id"`
	Pool string `json:"pool"`
	// Queued tells that one was queued or under way before: it is that one.
	Queued bool `json:"queued"`
	// Error is why nothing will come of it for now, as when no live worker serves the pool.
	Error string `json:"error,omitempty"`
}

// ImageExplained says how a pool's image would be made, and why so. Nothing is built.
type ImageExplained struct {
	Pool   string `json:"pool"`
	Worker string `json:"worker"`
	Repo   string `json:"repo"`
	// Branch and Commit are what was looked at, empty where the pool file gives the steps.
	Branch string `json:"branch,omitempty"`
	Commit string `json:"commit,omitempty"`
	// Source is where the steps come from: pool_file, repository, or none: a plain clone.
	Source string `json:"source"`
	// Why is a line for each thing that was decided.
	Why []string `json:"why"`
	// Looked are the files of the repository that may give the steps, in the order of precedence.
	Looked []ImageLooked     `json:"looked"`
	Setup  []string          `json:"setup"`
	Warm   []string          `json:"warm"`
	Env    map[string]string `json:"env,omitempty"`
	// Secrets are names.
	Secrets []string `json:"secrets,omitempty"`
	// TimeoutMS bounds each step.
	TimeoutMS int64 `json:"timeout_ms"`
	// Error is why a build would fail before its first step, as by a file that is refused.
	Error string `json:"error,omitempty"`
}

// ImageLooked is a file that may say how an image is made, and what came of it: used, passed_over (another comes
// before it), not_found, refused, not_looked_at (what was found before it decides).
type ImageLooked struct {
	File   string `json:"file"`
	Result string `json:"result"`
	Why    string `json:"why,omitempty"`
}
