"""Views that decide which rows come: mixtures, weights, stages, buckets; each is an order over DataRefs."""
