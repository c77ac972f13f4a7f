package console

import (
	"maps"
	"slices"
)

// Pages returns the pages that can be read, and the pages that accept forms.
func (c *Console) Pages() (read, forms []string) {
	for _, name := range slices.Sorted(maps.Keys(c.routes)) {
		if c.routes[name].get != nil {
			read = append(read, name)
		}
		if c.routes[name].post != nil {
			forms = append(forms, name)
		}
	}
	return read, forms
}

// Acts returns the actions that the changes need.
func (c *Console) Acts() (all []Action) {
	for _, a := range c.acts {
		all = append(all, a.action)
	}
	return all
}
