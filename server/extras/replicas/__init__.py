"""Several whole servers behind one port: `serve --replicas N`. HAProxy is the data path; Ray only places processes."""
