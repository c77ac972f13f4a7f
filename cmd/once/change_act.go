package main

import (
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// act contains the flags of the commands that change messages.
type act struct {
	all, yes bool
}

func (a *app) addActFlags(cmd *cobra.Command, to *act) {
	flags := cmd.Flags()
	flags.BoolVar(&to.all, "all", false, "select all messages")
	flags.BoolVar(&to.yes, "yes", false, "change what the filters select; without it the command only shows what matches")
	flags.StringVar(&a.settings.why, "why", "", "the reason, for the audit log")
}

// selected returns the IDs in args, or nil if filters select the messages. The
// parameter conditions contains the names of the filters.
func (to *act) selected(cmd *cobra.Command, args, conditions []string) ([]int64, error) {
	ids, err := parseIDs(args)
	if err != nil {
		return nil, err
	}
	filtered := slices.ContainsFunc(conditions, cmd.Flags().Changed)
	switch {
	case len(ids) > 0 && (filtered || to.all):
		return nil, usagef("give IDs or filters, not both")
	case to.all && filtered:
		return nil, usagef("--all selects everything: leave it out, or leave out the filters")
	case len(ids) == 0 && !filtered && !to.all:
		return nil, usagef("say which messages: give IDs, filters such as --%s, or --all", conditions[0])
	}
	return ids, nil
}

// needWhy returns an error if the parameter required is true and --why is empty. Callers
// pass false for a dry run, because it needs no reason.
func (a *app) needWhy(required bool) error {
	if required && strings.TrimSpace(a.settings.why) == "" {
		return usagef("say why with --why: the reason is written to the audit log")
	}
	return nil
}

func sortedKeys(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) }
