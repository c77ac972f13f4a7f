package parked

// ConsumerQueries returns the queries of Consumers that read messages.
func ConsumerQueries(m *Messages) map[string]string {
	d := m.dialect
	return map[string]string{"names": d.SQL(namesQuery), "counts": d.SQL(countsQuery(d)), "lag": d.SQL(lagQuery(d))}
}
