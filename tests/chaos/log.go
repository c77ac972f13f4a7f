package main

import (
	"os"

	"github.com/ThreeDotsLabs/watermill"
)

// newLog returns a logger that writes to standard error. The standard error of a
// process is a file.
func newLog(name string) watermill.LoggerAdapter {
	return watermill.NewStdLoggerWithOut(os.Stderr, false, false).With(watermill.LogFields{"process": name})
}
