// Package pools tests warm pools of repositories, the images they are made of, and sessions.
package pools
