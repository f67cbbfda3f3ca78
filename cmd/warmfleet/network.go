package main

import (
	"fmt"
	"net"
	"strconv"

	"github.com/warmfleet/warmfleet/internal/termsafe"
	"github.com/warmfleet/warmfleet/pkg/events"
)

// networkLines say what a list of hosts kept a step from, and what it let through but was not there.
func networkLines(use []events.NetworkUse, more int) []string {
	var lines []string
	for _, u := range use {
		what := "network refused"
		switch u.Verdict {
		case events.NetworkDenied:
		case events.NetworkAllowed:
			continue
		default:
			what = "network failed"
		}
		to := ""
		if u.Host != "" {
			to = " " + net.JoinHostPort(u.Host, strconv.Itoa(u.Port))
		}
		times := ""
		if u.Count > 1 {
			times = fmt.Sprintf(", %d times", u.Count)
		}
		lines = append(lines, termsafe.Line(fmt.Sprintf("%s%s%s: %s", what, to, times, u.Why)))
	}
	if more > 0 {
		lines = append(lines, fmt.Sprintf("network: %d attempts more, to other hosts", more))
	}
	return lines
}
