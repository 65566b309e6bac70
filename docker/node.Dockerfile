# The node manager. Its home must be a directory of the host, mounted at the same path: the containers it starts and the
# executors on that host reach its sockets there.
FROM udo-platform
ENTRYPOINT ["python3", "-m", "node_manager"]
CMD ["--home", "/run/udo", "--driver", "docker"]
