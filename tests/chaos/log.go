package main

import (
	"os"

	"github.com/ThreeDotsLabs/watermill"
)

// newLog returns a logger that writes to standard error. The test redirects the
// standard error of each process that it starts to a file.
func newLog(name string) watermill.LoggerAdapter {
	return watermill.NewStdLoggerWithOut(os.Stderr, false, false).With(watermill.LogFields{"process": name})
}
