# The registry. Its data, the token included, lies in /data. For other hosts: --tls FOLDER --listen 0.0.0.0:5000
FROM udo-platform
EXPOSE 5000
VOLUME /data
ENTRYPOINT ["python3", "-m", "registry", "--data", "/data", "--token-file", "/data/token"]
CMD ["--listen", "127.0.0.1:5000"]
