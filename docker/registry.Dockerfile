# The registry. Its data, the token included, lies in /data.
FROM udo-platform
EXPOSE 5000
VOLUME /data
ENTRYPOINT ["python3", "-m", "registry", "--data", "/data", "--token-file", "/data/token"]
CMD ["--listen", "0.0.0.0:5000"]
