package parked

// ConsumerQueries returns the queries with which Consumers reads messages.
func ConsumerQueries(m *Messages) map[string]string {
	d := m.db.Dialect
	return map[string]string{"names": d.SQL(namesQuery), "counts": d.SQL(countsQuery(d, CountLimit)), "lag": d.SQL(lagQuery(d, maxTenants))}
}
