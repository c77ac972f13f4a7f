package testkit

// UseTables does what MainWithTables does before it calls Main.
func UseTables() { withTables = true }
