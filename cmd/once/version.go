package main

import (
	"fmt"
	"os"
	"runtime/debug"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/watermill-once/once/schema"
)

// release is the version that "make once" sets with a linker flag, or "".
var release string

// version returns the version of this command.
func version() string {
	if release != "" {
		return release
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}

func versionText() string {
	return fmt.Sprintf("%s (tables of version %d)", version(), schema.Version())
}

// manCommand returns a hidden command that writes the man pages. Packagers need it, but
// operators do not.
func (a *app) manCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "man DIRECTORY",
		Short:  "Write the man pages",
		Hidden: true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("%s needs one directory", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o750); err != nil {
				return err
			}
			root := cmd.Root()
			root.DisableAutoGenTag = true // the same input gives the same pages
			return doc.GenManTree(root, &doc.GenManHeader{Section: "1", Source: "once " + version()}, args[0])
		},
	}
}
